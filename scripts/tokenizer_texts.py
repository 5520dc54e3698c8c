"""Texts that pre-tokenizers disagree about: the questions of fixtures/tokenizers (see tokenizer-goldens.py)."""

WORDS = ["hello world", " hello", "hello ", "  hello  world  ", "Hello World", "HELLO WORLD", "helloWorld", "HelloWorldFOOBar",
         "getHTTPResponseCode", "snake_case_name", "kebab-case-name", "a", " a", "", " ", "The quick brown fox jumps over the lazy dog.",
         "antidisestablishmentarianism", "iPhone", "McDonald's", "O'Neill", "x²y³", "H₂O", "naïve café", "e\u0301te\u0301", "A\u030angstro\u0308m",
         "Ångström", "ﬁne ﬂow", "ǅungla ǈubav", "ʼn ʻokina", "ªº", "ⅷ Ⅷ", "İstanbul ısı", "straße STRASSE", "ﷺ", "œuvre Æsir"]

CONTRACTIONS = [w + c for w in ("it", "IT", "we", "I") for c in ("'s", "'S", "'t", "'T", "'re", "'RE", "'Re", "'ve", "'m", "'ll", "'LL", "'d", "'D")] + [
    "don't you'd we'll I'm they've it's", "DON'T YOU'D WE'LL I'M THEY'VE IT'S", "it’s don’t", "'s't're", "''s", "' s", "it's's", "rock'n'roll",
    "'tis 'twas", "it'\u017f", "'\u017f it", "l'l'l", "'dog 'sun", "he said 'sure'"]

DIGITS = ["0", "12", "123", "1234", "12345", "1234567890", " 123", "  1234", "1,234,567.89", "3.14159", "1e-10", "0xDEADBEEF", "2024-02-29T23:59:59Z",
          "v1.2.3-rc4", "1st 2nd 3rd", "a1b2c3", "１２３４", "१२३४५", "٣٤٥", "½ ¾ ⅓", "①②③", "²³¹", "12 345", "-5 +5", "5%", "$5.00 €5 £5 ¥5", "一二三", "1\u00a0000\u00a0000"]

SPACES = ["a  b", "a   b", "a    b", "a \t b", "\t", "\t\ta", "a\t", "\n", "\n\n", "\n\n\n", "a\nb", "a\n\nb", "a\n \nb", "a \n b", "a  \n  b", "a\r\nb", "a\r\n\r\nb",
          "\r", "\r\r\n", " \n", "\n ", "  \n\n  ", "a\n\n\n\n\nb", "    indented", "\tindented\n\t\tmore", "trailing   ", "trailing\n", "trailing \n\n ", " " * 17 + "x",
          " " * 64, "x" + " " * 33 + "y", "\n" * 12, "a\u00a0b", "a\u00a0\u00a0b", "a\u2003b", "a\u3000b", "a\u3000\u3000b", "a\u2028b", "a\u2029b", "a\u0085b", "a\x0bb", "a\x0cb", "a\x1cb", "\ufeffa",
          "a\u200bb", "a \u200b b", "a\u202fb", "a\u180eb", "a\u2060b", " .", "  .", " \n.", "!\n", "!\n\n", "!\r\n", "! \n", "a!\n\nb", "/\n/\n", "//\n", "{\n\n}", "\x00", "a\x00b", "\x01\x02", "\x7f", "\x1b[31mred\x1b[0m"]

PUNCTUATION = ["!", "!!", "?!?!", "...", "…", "a.b.c", "(a)", "((a))", "[a]{b}", "<a>", "</a>", "a/b/c", "a\\b", "a|b", "a&b", "a@b.c", "#tag", "~/.x", "`code`", "```rust\nfn main() {}\n```", "**bold** _it_",
               "“quoted” ‘x’ «y» „z“", "a—b", "a – b", "a‑b", "–—―", "!a", "#a", "$a", ".a", "_a", "-a", "/a", "(a", "\"a", "'a", "!ä", "!日", " !a", "  !!", "→ ⇒ ∀x∈ℝ", "±√∞≠≤", "©®™", "§¶†‡", "¿Qué? ¡Sí!", "x^2+y^2=z^2",
               "https://example.org/a?b=c&d=e#f", "user@example.org", "C++ C# F#", "+-*/=", "----", "====", "____", "&nbsp;&#39;", "%20", "a,b;c:d", "¡", "、。「」", "！？", "・"]

SCRIPTS = ["你好，世界", "你好世界123", "日本語テキスト", "こんにちは世界", "カタカナ・ひらがな", "漢字かな交じり文ABC", "안녕하세요 세계", "ㄱㄴㄷ", "Привет, мир!", "ПРИВЕТ мир", "Γειά σου Κόσμε", "שלום עולם", "שָׁלוֹם", "مرحبا بالعالم", "السَّلَامُ",
           "नमस्ते दुनिया", "हिन्दी में", "বাংলা ভাষা", "தமிழ் மொழி", "తెలుగు", "ภาษาไทย", "สวัสดีครับ", "ລາວ", "မြန်မာ", "ខ្មែរ", "ქართული", "Հայերեն", "አማርኛ", "ᏣᎳᎩ", "Việt Nam tiếng Việt", "Vie\u0323\u0302t Nam tie\u0302\u0301ng",
           "mixed русский english 中文 عربي", "abcдеф", "aбc", "𝒜𝓁𝓅𝒽𝒶 𝔅𝔢𝔱𝔞", "𐍈𐌰𐌽", "𓀀𓀁", "㐀㐁", "𠀀𠀁", "龥龦", "\u3040\u3099", "がぎぐ", "か\u3099き\u3099", "ﾊﾝｶｸ", "ＦＵＬＬｗｉｄｔｈ", "ﬀ", "가", "\u1100\u1161", "Ω\u2126", "K\u212a"]

EMOJI = ["😀", "😀😀", "😀 😀", "hi😀", "😀hi", "👍🏽", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪🇫🇷", "❤️", "❤", "☺️ ok", "1️⃣2️⃣", "🧑🏿‍💻 codes", "a👨‍🚀b", "✅ done\n❌ not", "♥♦♣♠", "\U0001fae0", "\U000e0067\U000e0062", "\ue000\uf8ff", "\U0010ffff", "\ufffd", "\ufffe"]

MARKS = ["e\u0301", "a\u0300\u0301\u0302", "\u0301", " \u0301", "a \u0301", "q\u0307\u0323", "Z\u0351\u036b\u0343a\u0329\u0320l\u0348g\u033co", "n\u0303 n\u0303", "1\u0301", "!\u0301", "\u20dd", "a\u20dd", "ç c\u0327", "ﭏ", "\u0627\u0653", "क\u093c", "\u0958", "a\u0315\u0300"]

CODE = ["def f(x):\n    return x + 1\n", "for (int i = 0; i < 10; i++) {\n\tsum += a[i];\n}\n", "fn main() {\n    println!(\"{}\", 1);\n}", "SELECT * FROM t WHERE a = 'b';", "<div class=\"a b\">text</div>", "{\"key\": [1, 2.5, null, true]}",
        "if a == b && !c || d != e {}", "x = y if z else w  # comment", "#include <stdio.h>\r\n#define X 1\r\n", "let s = r#\"raw\"#;", "$ ls -la | grep foo > out.txt 2>&1", "\\begin{equation} \\frac{a}{b} \\end{equation}", "a.b?.c ?? d => e",
        "/* comment */ // more", "0b1010_1010u8", "std::vector<std::pair<int, int>>", "print(f\"{x!r:>10}\")", "\t\tif (x) {\n\t\t\ty();\n\t\t}\n\n\n\treturn;\n"]

LONG = ["a" * 100, "ab" * 60, "!" * 70, "é" * 50, "日" * 60, "1" * 50, "😀" * 20, "=-" * 40, "word " * 30, "\n\t" * 25, "aA" * 40, "thethethe" * 12, "_" * 65, "a\u0301" * 30]

CONTROL = ["<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n", "<|endoftext|>", "a<|endoftext|>b", "<|endoftext|><|endoftext|>", "<|im_start|", "|im_start|>", "<<|im_end|>>", "<|im_end|>\n", " <|im_end|> ", "<|im_end |>", "<think>\nhm\n</think>\n\nok",
           "<tool_call>\n{\"name\": \"f\"}\n</tool_call>", "<|eot_id|>", "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>", "[gMASK]<sop><|user|>\nhi<|assistant|>", "<｜begin▁of▁sentence｜>You<｜User｜>hi<｜Assistant｜>", "<｜end▁of▁sentence｜>",
           "<|start|>user<|message|>hi<|end|><|start|>assistant", "<|return|><|call|>", "<s>[INST] hi [/INST]", "</s>", "<unk>", "<s></s>", "<0x0A>", "▁", "▁a ▁b", "a▁b", "Ġ", "Ċ", "aĠb", "]~b]user\nhi[e~[\n", "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>", "<|END|>", "<|Im_End|>", "|||", "   x", "<||>"]

TEXTS = WORDS + CONTRACTIONS + DIGITS + SPACES + PUNCTUATION + SCRIPTS + EMOJI + MARKS + CODE + LONG + CONTROL
