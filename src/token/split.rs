//! Cuts text into the pieces that merging may not cross: the pre-tokenizers of byte-level vocabularies.
//!
//! An expression is a fact of a vocabulary, part of what the model was trained with. Those in use need one look-ahead, `\s+(?!\S)`
//! (white space but for its last character, which goes to the word that follows); taking that character back afterwards
//! instead makes them ordinary expressions, which match in linear time whatever the text.

use regex_automata::{Anchored, Input, Match, PatternID, meta};

/// One expression, applied to all pieces that those before it left. What it matches are pieces, what lies between as well.
struct Step {
    /// Two patterns, the earlier preferred: the expression up to its last alternatives, and [`SPACES`].
    regex: meta::Regex,
}

/// A pre-tokenizer.
pub(super) struct Splitter {
    steps: Vec<Step>,
}

/// What stands for `\s+(?!\S)|\s+` at the end of an expression.
const SPACES: &str = r"\s+";

impl Splitter {
    /// Of `expressions`, each without its last alternatives `\s+(?!\S)|\s+`, which all have that are not `bare`.
    pub(super) fn new(expressions: &[Expression]) -> Result<Self, Box<meta::BuildError>> {
        let steps = expressions.iter().map(|expression| {
            let regex = match expression {
                Expression::Bare(pattern) => meta::Regex::new_many(&[pattern]),
                Expression::WithSpaces(pattern) => meta::Regex::new_many(&[pattern, SPACES]),
            };
            regex.map(|regex| Step { regex }).map_err(Box::new)
        });
        Ok(Self {
            steps: steps.collect::<Result<_, _>>()?,
        })
    }

    /// Hands the pieces of `text` to `take`, in order. Together they are `text`.
    pub(super) fn split<'t>(&self, text: &'t str, take: &mut impl FnMut(&'t str)) {
        split(&self.steps, text, take);
    }
}

/// An expression of a pre-tokenizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expression {
    /// As it is.
    Bare(&'static str),
    /// Followed by `|\s+(?!\S)|\s+`.
    WithSpaces(&'static str),
}

fn split<'t>(steps: &[Step], text: &'t str, take: &mut impl FnMut(&'t str)) {
    let Some((step, rest)) = steps.split_first() else {
        if !text.is_empty() {
            take(text);
        }
        return;
    };
    let mut done = 0;
    while let Some((start, end)) = step.next(text, done) {
        split(rest, &text[done..start], take);
        split(rest, &text[start..end], take);
        done = end;
    }
    split(rest, &text[done..], take);
}

impl Step {
    /// The next piece at or after `from`.
    fn next(&self, text: &str, from: usize) -> Option<(usize, usize)> {
        let input = Input::new(text).range(from..);
        // Nearly always there is a match right here, which is found in half the time.
        let here = self.regex.find(input.clone().anchored(Anchored::Yes));
        let found = here.or_else(|| self.regex.find(input))?;
        Some((found.start(), end_of(text, &found)))
    }
}

/// Where a match ends, once white space has given its last character back to a word that follows.
fn end_of(text: &str, found: &Match) -> usize {
    let end = found.end();
    if found.pattern() == PatternID::ZERO || end == text.len() {
        return end;
    }
    let last = text[..end].chars().next_back().map_or(0, char::len_utf8);
    if end - last > found.start() {
        end - last
    } else {
        end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(expressions: &[Expression], text: &str, pieces: &[&str]) {
        let splitter = Splitter::new(expressions).unwrap();
        let mut got = Vec::new();
        splitter.split(text, &mut |piece| got.push(piece));
        assert_eq!(got, pieces, "{text:?}");
    }

    #[test]
    fn spaces_leave_their_last_to_the_word() {
        let words = [Expression::WithSpaces(r" ?\p{L}+|\s*\n")];
        check(&words, "", &[]);
        check(&words, "a b", &["a", " b"]);
        check(&words, "a   b", &["a", "  ", " b"]);
        check(&words, "a\t\tb", &["a", "\t", "\t", "b"]);
        check(&words, "a\tb", &["a", "\t", "b"]);
        check(&words, "a  ", &["a", "  "]);
        check(&words, "a \n b", &["a", " \n", " b"]);
        check(
            &words,
            "a\u{2003}\u{2003}b",
            &["a", "\u{2003}", "\u{2003}", "b"],
        );
    }

    #[test]
    fn what_does_not_match_is_a_piece() {
        let digits = [Expression::Bare(r"[0-9]{1,2}")];
        check(&digits, "ab123c", &["ab", "12", "3", "c"]);
    }

    #[test]
    fn a_step_cuts_what_those_before_left() {
        let both = [
            Expression::Bare("[0-9]"),
            Expression::WithSpaces(" ?[a-z0-9]+"),
        ];
        check(&both, "a1  b 2", &["a", "1", " ", " b", " ", "2"]);
    }
}
