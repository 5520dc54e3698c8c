//! Made-up vocabularies of the true size: any text can be tokenised, into pieces of two to four letters, and nothing is copied.
//!
//! Pieces are all two-letter, three-letter and then four-letter combinations, each with and without a space before it, letters in the
//! order of their frequency in English. Each is the merge of the piece one letter shorter with its last letter.

use crate::gguf::{Entry, HeaderWriter};

use super::blueprint::Tokenizer;

/// Letters by frequency.
const LETTERS: &str = "etaoinshrdlucmfwypvbgkjqxz";
/// ChatML and end of text, the last tokens of a BPE vocabulary.
const SPECIALS: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
const CHATML: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
const INST: &str = "{{ bos_token }}{% for message in messages %}{% if message.role == 'assistant' %}{{ message.content }}{{ eos_token }}\
    {% else %}[INST] {{ message.content }} [/INST]{% endif %}{% endfor %}";

/// Values of `tokenizer.ggml.token_type`.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const BYTE: i32 = 6;

/// Adds the keys of a vocabulary of `size` tokens.
pub(super) fn describe(header: &mut HeaderWriter, tokenizer: Tokenizer, size: usize) {
    match tokenizer {
        Tokenizer::Bpe(pre) => describe_bpe(header, pre, size),
        Tokenizer::Spm => describe_spm(header, size),
    }
}

fn describe_bpe(header: &mut HeaderWriter, pre: &str, size: usize) {
    let mut tokens: Vec<String> = byte_alphabet().map(String::from).to_vec();
    let mut merges = Vec::with_capacity(size);
    for (left, right) in pieces('\u{120}').take(size - tokens.len() - SPECIALS.len()) {
        tokens.push(format!("{left}{right}"));
        merges.push(format!("{left} {right}"));
    }
    let mut types = vec![NORMAL; tokens.len()];
    let first_special = tokens.len() as u32;
    tokens.extend(SPECIALS.map(String::from));
    types.resize(tokens.len(), CONTROL);

    header.set("tokenizer.ggml.model", Entry::Str("gpt2"));
    header.set("tokenizer.ggml.pre", Entry::Str(pre));
    header.set("tokenizer.ggml.tokens", Entry::Strs(&tokens));
    header.set("tokenizer.ggml.token_type", Entry::I32s(&types));
    header.set("tokenizer.ggml.merges", Entry::Strs(&merges));
    header.set("tokenizer.ggml.bos_token_id", Entry::U32(first_special));
    header.set("tokenizer.ggml.eos_token_id", Entry::U32(first_special + 2));
    header.set("tokenizer.ggml.padding_token_id", Entry::U32(first_special));
    header.set("tokenizer.ggml.add_bos_token", Entry::Bool(false));
    header.set("tokenizer.chat_template", Entry::Str(CHATML));
}

fn describe_spm(header: &mut HeaderWriter, size: usize) {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(String::from).to_vec();
    let mut types = vec![UNKNOWN, CONTROL, CONTROL];
    tokens.extend((0..=255u8).map(|byte| format!("<0x{byte:02X}>")));
    types.resize(tokens.len(), BYTE);
    let mut scores = vec![0.0; tokens.len()];
    // Single characters come last, as in real vocabularies: their scores never matter.
    let singles: Vec<String> = ('!'..='~').chain(['\u{2581}']).map(String::from).collect();
    let merged = pieces('\u{2581}')
        .take(size - tokens.len() - singles.len())
        .map(|(left, right)| format!("{left}{right}"));
    tokens.extend(merged.chain(singles));
    types.resize(tokens.len(), NORMAL);
    scores.extend((0..tokens.len() - scores.len()).map(|rank| -(rank as f32)));

    header.set("tokenizer.ggml.model", Entry::Str("llama"));
    header.set("tokenizer.ggml.pre", Entry::Str("default"));
    header.set("tokenizer.ggml.tokens", Entry::Strs(&tokens));
    header.set("tokenizer.ggml.scores", Entry::F32s(&scores));
    header.set("tokenizer.ggml.token_type", Entry::I32s(&types));
    header.set("tokenizer.ggml.bos_token_id", Entry::U32(1));
    header.set("tokenizer.ggml.eos_token_id", Entry::U32(2));
    header.set("tokenizer.ggml.unknown_token_id", Entry::U32(0));
    header.set("tokenizer.ggml.add_bos_token", Entry::Bool(true));
    header.set("tokenizer.ggml.add_eos_token", Entry::Bool(false));
    header.set("tokenizer.chat_template", Entry::Str(INST));
}

/// Merges in rank order, (left, right), both of which exist by then. `space` stands for a space.
fn pieces(space: char) -> impl Iterator<Item = (String, char)> {
    let letters = || LETTERS.chars();
    let spaced = letters().map(move |letter| (space.to_string(), letter));
    let grown = (1..=3).flat_map(move |length| {
        words(length).flat_map(move |word| {
            letters().flat_map(move |letter| {
                [(word.clone(), letter), (format!("{space}{word}"), letter)]
            })
        })
    });
    spaced.chain(grown)
}

/// All words of that length, the last letter changing fastest.
fn words(length: u32) -> impl Iterator<Item = String> {
    let letters: Vec<char> = LETTERS.chars().collect();
    let count = letters.len();
    (0..count.pow(length)).map(move |index| {
        (0..length)
            .rev()
            .map(|place| letters[index / count.pow(place) % count])
            .collect()
    })
}

/// The character that stands for each byte in byte-level BPE: printable ones themselves, the others from U+0100 on.
///
/// **Source**: the GPT-2 encoder's byte table.
fn byte_alphabet() -> [char; 256] {
    let mut next = 0x100;
    std::array::from_fn(|byte| match byte as u8 {
        printable @ (b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff) => char::from(printable),
        _ => {
            next += 1;
            char::from_u32(next - 1).unwrap_or(char::REPLACEMENT_CHARACTER)
        }
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::gguf::Gguf;
    use crate::synth::Blueprint;

    fn check(model: &Blueprint) {
        let mut header = HeaderWriter::new();
        describe(&mut header, model.tokenizer, model.vocabulary);
        let file = Gguf::from_bytes(header.finish()).unwrap();
        let tokens: Vec<&str> = file
            .strings("tokenizer.ggml.tokens")
            .unwrap()
            .unwrap()
            .texts()
            .map(Result::unwrap)
            .collect();
        assert_eq!(tokens.len(), model.vocabulary, "{}", model.name);
        assert_eq!(
            file.i32s("tokenizer.ggml.token_type")
                .unwrap()
                .unwrap()
                .len(),
            tokens.len()
        );
        let mut seen = HashSet::new();
        assert!(
            tokens.iter().all(|token| seen.insert(*token)),
            "{}: a token twice",
            model.name
        );
        let Some(merges) = file.strings("tokenizer.ggml.merges").unwrap() else {
            assert_eq!(
                file.f32s("tokenizer.ggml.scores").unwrap().unwrap().len(),
                tokens.len()
            );
            return;
        };
        let mut known: HashSet<&str> = tokens[..256].iter().copied().collect();
        for merge in merges.texts().map(Result::unwrap) {
            let (left, right) = merge.split_once(' ').unwrap();
            assert!(
                known.contains(left) && known.contains(right),
                "{}: {merge} merges unknown pieces",
                model.name
            );
            known.insert(tokens[known.len()]);
            assert!(
                known.contains(format!("{left}{right}").as_str()),
                "{}: {merge} is not the next token",
                model.name
            );
        }
        assert_eq!(known.len() + SPECIALS.len(), tokens.len());
    }

    #[test]
    fn vocabularies_are_whole() {
        Blueprint::ALL.iter().for_each(check);
    }

    #[test]
    fn bytes_have_their_characters() {
        let alphabet = byte_alphabet();
        assert_eq!(alphabet.iter().collect::<HashSet<_>>().len(), 256);
        assert_eq!(
            [0x00, 0x20, 0x41, 0x7f, 0xad, 0xff].map(|byte: usize| alphabet[byte]),
            ['Ā', 'Ġ', 'A', 'ġ', '\u{143}', 'ÿ']
        );
    }
}
