//! How byte-level BPE tokenizers split a text before they merge, by the name that GGUF files give
//! (`tokenizer.ggml.pre`). The patterns are parts of the tokenizers: another one gives other tokens.

/// English contractions.
const CONTRACTIONS: &str = "'s|'t|'re|'ve|'m|'ll|'d";
/// The same in any case.
const CONTRACTIONS_ANY_CASE: &str = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])";
/// White space: all but the last before a word, and what is left.
const SPACES: &str = r"\s+(?!\S)|\s+";
/// Letters as capitals and then small ones.
const CAPITALISED: &str =
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+";
/// The same with capitals at least.
const CAPITALS: &str =
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*";

/// A way to split.
pub(super) struct PreTokenizer {
    /// Patterns, applied one after the other to what the ones before left whole.
    pub patterns: Vec<String>,
    /// A piece that is a token already is not merged.
    pub ignore_merges: bool,
    /// Whether a beginning-of-text token is added where the file does not say.
    pub adds_bos: bool,
    /// Whether the text is put into Unicode's composed form first.
    pub composes: bool,
}

/// GPT-2's pattern.
fn gpt2() -> String {
    format!(r"{CONTRACTIONS}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{SPACES}")
}

/// Llama 3's kind of pattern, with numbers of so many digits.
fn llama3(numbers: &str) -> String {
    format!(
        r"{CONTRACTIONS_ANY_CASE}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{numbers}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|{SPACES}"
    )
}

/// The way of this name; `None` for one that is not known.
pub(super) fn pre_tokenizer(name: &str) -> Option<PreTokenizer> {
    let digit = || r"\p{N}".to_owned();
    let up_to_three = r"\p{N}{1,3}";
    let patterns = match name {
        "gpt-2" | "gpt2" | "phi-2" | "mpt" | "olmo" | "jais" | "gigachat" | "trillion" => {
            vec![gpt2()]
        }
        "starcoder" | "refact" | "command-r" | "smollm" | "codeshell" | "exaone" | "minerva-7b" => {
            vec![digit(), gpt2()]
        }
        "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "pixtral" | "dbrx" | "smaug-bpe"
        | "glm4" | "chatglm-bpe" => vec![llama3(up_to_three)],
        "qwen2" | "deepseek-r1-qwen" | "stablelm2" | "megrez" => vec![llama3(r"\p{N}")],
        "falcon" => vec![
            r"[\p{P}\$\+<=>\^~\|`]+".to_owned(),
            gpt2(),
            "[0-9][0-9][0-9]".to_owned(),
        ],
        // What files without a name were made with.
        "default" => vec![
            r"[\p{P}\$\+<=>\^~\|]+".to_owned(),
            gpt2(),
            r"\p{N}+".to_owned(),
            "[0-9][0-9][0-9]".to_owned(),
        ],
        "deepseek-coder" => vec![
            r"[\r\n]".to_owned(),
            r"\s?\p{L}+".to_owned(),
            r"\s?\p{P}+".to_owned(),
            "[一-龥ࠀ-一가-퟿]+".to_owned(),
            digit(),
        ],
        "deepseek-llm" => vec![
            r"[\r\n]".to_owned(),
            // Letters that have two cases.
            r"\s?[\p{Lu}\p{Ll}\p{Lt}]+".to_owned(),
            r"\s?[!-/:-~！-／：-～‘-‟　-。]+".to_owned(),
            r"\s+$".to_owned(),
            "[一-龥ࠀ-一가-퟿]+".to_owned(),
            digit(),
        ],
        "deepseek-v3" => vec![
            up_to_three.to_owned(),
            "[一-龥぀-ゟ゠-ヿ]+".to_owned(),
            format!(
                r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{{|}}~][A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*|\s*[\r\n]+|{SPACES}"##
            ),
        ],
        "tekken" => vec![format!(
            r"{CAPITALISED}|{CAPITALS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|{SPACES}"
        )],
        "gpt-4o" | "llama4" => vec![format!(
            r"{CAPITALISED}{CONTRACTIONS_ANY_CASE}?|{CAPITALS}{CONTRACTIONS_ANY_CASE}?|{up_to_three}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|{SPACES}"
        )],
        _ => return None,
    };
    let is_llama3 = matches!(
        name,
        "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "pixtral"
    );
    Some(PreTokenizer {
        patterns,
        ignore_merges: is_llama3 || name == "tekken",
        adds_bos: is_llama3 || name == "tekken",
        composes: name == "qwen2",
    })
}
