//! The pre-tokenizers by the names that files give them (`tokenizer.ggml.pre`), with what else the name implies.
//!
//! **Source**: the `pre_tokenizer` and `normalizer` sections of the models' published `tokenizer.json`; each is pinned by golden ids in
//! `fixtures/tokenizers`.

use super::split::Expression::{self, Bare, WithSpaces};

/// What a value of `tokenizer.ggml.pre` stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pre {
    /// Names with this meaning.
    pub(super) names: &'static [&'static str],
    /// How text is cut.
    pub(super) expressions: &'static [Expression],
    /// A piece that is a token is not merged.
    pub(super) ignore_merges: bool,
    /// Text is brought to Unicode's composed form (NFC) first.
    pub(super) compose: bool,
    /// Whether prompts have a begin token where the file does not say.
    pub(super) add_bos: bool,
}

/// With nothing but expressions.
const PLAIN: Pre = Pre {
    names: &[],
    expressions: &[],
    ignore_merges: false,
    compose: false,
    add_bos: false,
};

const GPT2: Expression =
    WithSpaces(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+");

/// Words in camel case are cut before their capitals.
const CASED: Expression = WithSpaces(concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+",
));

const THREE_DIGITS: Expression = WithSpaces(concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+",
));

/// All that are known.
pub(super) const KNOWN: &[Pre] = &[
    Pre {
        names: &["qwen2", "deepseek-r1-qwen"],
        expressions: &[WithSpaces(concat!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|",
            r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+",
        ))],
        compose: true,
        ..PLAIN
    },
    Pre {
        names: &["qwen35"],
        expressions: &[WithSpaces(concat!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|",
            r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+",
        ))],
        compose: true,
        ..PLAIN
    },
    Pre {
        names: &["llama-bpe", "llama3", "llama-v3"],
        expressions: &[THREE_DIGITS],
        ignore_merges: true,
        add_bos: true,
        ..PLAIN
    },
    Pre {
        names: &["glm4", "glm5", "chatglm-bpe"],
        expressions: &[THREE_DIGITS],
        ignore_merges: true,
        ..PLAIN
    },
    Pre {
        names: &["gpt-4o", "llama4"],
        expressions: &[CASED],
        ignore_merges: true,
        ..PLAIN
    },
    Pre {
        names: &["minimax-m2"],
        expressions: &[CASED],
        compose: true,
        ..PLAIN
    },
    Pre {
        names: &["deepseek-v3"],
        expressions: &[
            Bare(r"\p{N}{1,3}"),
            Bare("[一-龥\u{3040}-ゟ゠-ヿ]+"),
            WithSpaces(concat!(
                r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"##,
                r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+",
            )),
        ],
        add_bos: true,
        ..PLAIN
    },
    Pre {
        names: &["gpt-2"],
        expressions: &[GPT2],
        ..PLAIN
    },
    Pre {
        names: &["olmo"],
        expressions: &[GPT2],
        compose: true,
        ..PLAIN
    },
    Pre {
        names: &["smollm", "starcoder", "refact"],
        expressions: &[Bare(r"\p{N}"), GPT2],
        ..PLAIN
    },
];

/// What `name` stands for.
pub(super) fn find(name: &str) -> Option<&'static Pre> {
    KNOWN.iter().find(|pre| pre.names.contains(&name))
}

/// All names, for a message.
pub(super) fn names() -> String {
    let names: Vec<&str> = KNOWN.iter().flat_map(|pre| pre.names).copied().collect();
    names.join(", ")
}
