//! Conversations that answers are written in.

const WHO: [&str; 12] = [
    "a brave frog",
    "a tired baker",
    "a shy dragon",
    "a small robot",
    "an old sailor",
    "a clever fox",
    "a quiet girl",
    "a lonely whale",
    "a proud rooster",
    "a curious cat",
    "a young gardener",
    "a lost bear",
];
const WHAT: [&str; 9] = [
    "learns to fly",
    "finds a golden key",
    "has a birthday",
    "builds a boat",
    "looks for a friend",
    "gets lost in the woods",
    "wants to see the sea",
    "plants a seed",
    "hears a strange noise",
];
const THINGS: [&str; 12] = [
    "a volcano",
    "a library",
    "a bridge",
    "rain",
    "a bee",
    "bread",
    "the moon",
    "a river",
    "a school",
    "music",
    "snow",
    "a garden",
];

/// A kind of conversation.
#[derive(Clone, Copy)]
pub(crate) enum Scene {
    Story,
    List,
    /// An answer that mostly repeats what stands in the prompt.
    CopyEdit,
    Dialogue,
    /// Tokens without a meaning.
    Noise,
}

impl Scene {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Story => "story",
            Self::List => "list",
            Self::CopyEdit => "copy-edit",
            Self::Dialogue => "dialogue",
            Self::Noise => "noise",
        }
    }

    /// The turns before the answer; one that is empty is to be filled with the model's own answer.
    pub(crate) fn turns(self, nth: usize) -> Vec<String> {
        let who = WHO[nth % WHO.len()];
        let what = WHAT[nth * 5 % WHAT.len()];
        let thing = THINGS[nth * 7 % THINGS.len()];
        match self {
            Self::Story => vec![format!("Write a short story about {who} who {what}.")],
            Self::List => vec![format!("Give me a list of five facts about {thing}.")],
            Self::CopyEdit => {
                let ask = format!("Write a short story about {who} who {what}.");
                vec![ask.clone(), String::new(), ask]
            }
            Self::Dialogue => vec![
                format!("What is {thing}?"),
                String::new(),
                format!(
                    "Thank you! And what do you know about {}?",
                    THINGS[(nth * 7 + 3) % THINGS.len()]
                ),
            ],
            Self::Noise => Vec::new(),
        }
    }
}
