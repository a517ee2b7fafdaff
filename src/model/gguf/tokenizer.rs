//! Tokenizers out of GGUF metadata: byte-level BPE with merges, and SentencePiece-style with scores.

use tokenizers::{
    AddedToken, Tokenizer as Pipeline,
    models::bpe::{BPE, Merges, Vocab},
    normalizers::unicode::NFC,
    pre_tokenizers::{
        PreTokenizerWrapper,
        byte_level::ByteLevel,
        sequence::Sequence,
        split::{Split, SplitPattern},
    },
    tokenizer::SplitDelimiterBehavior,
};

use super::{
    file::{GgufFile, Value},
    pre_tokenizers::pre_tokenizer,
};
use crate::{
    Error, Result,
    contain::contained,
    model::{
        Tokenizer,
        sentence_piece::{PieceKind, SentencePiece},
    },
};

/// Reads the tokenizer of a file.
pub(super) fn read(file: &GgufFile<'_>, origin: &str) -> Result<Tokenizer> {
    let refuse = |message: String| Error::Tokenizer {
        origin: origin.to_owned(),
        message,
    };
    let model = file
        .text("tokenizer.ggml.model")
        .ok_or_else(|| refuse("has no tokenizer".to_owned()))?;
    let tokens = texts(file, "tokenizer.ggml.tokens")
        .ok_or_else(|| refuse("its tokenizer has no tokens".to_owned()))?;
    let kinds: Vec<PieceKind> = match file.array("tokenizer.ggml.token_type") {
        Some(kinds) => kinds.values().map(piece_kind).collect(),
        None => vec![PieceKind::Normal; tokens.len()],
    };
    if kinds.len() != tokens.len() {
        return Err(refuse(format!(
            "its tokenizer has {} tokens, but kinds of {}",
            tokens.len(),
            kinds.len()
        )));
    }
    let bos = file
        .unsigned("tokenizer.ggml.bos_token_id")
        .and_then(|id| u32::try_from(id).ok())
        .filter(|&id| (id as usize) < tokens.len());
    let says_bos = file.flag("tokenizer.ggml.add_bos_token");
    match model {
        "gpt2" => {
            let (pipeline, adds_bos) = contained(|| byte_level(file, &tokens, &kinds, &refuse))
                .unwrap_or_else(|_| Err(refuse("its tokenizer contradicts itself".to_owned())))?;
            Ok(Tokenizer::from_pipeline(origin, pipeline)
                .with_bos(bos, says_bos.unwrap_or(adds_bos)))
        }
        "llama" => {
            let scores: Vec<f32> = file
                .array("tokenizer.ggml.scores")
                .map(|scores| scores.values().map(score).collect())
                .unwrap_or_default();
            if scores.len() != tokens.len() {
                return Err(refuse(format!(
                    "its tokenizer has {} tokens, but {} scores",
                    tokens.len(),
                    scores.len()
                )));
            }
            let adds_space = file.flag("tokenizer.ggml.add_space_prefix").unwrap_or(true);
            let pieces = tokens.into_iter().map(str::to_owned).collect();
            let model = SentencePiece::new(pieces, scores, &kinds, adds_space);
            Ok(Tokenizer::from_sentence_piece(origin, model)
                .with_bos(bos, says_bos.unwrap_or(true)))
        }
        other => Err(refuse(format!(
            "its tokenizer is of the kind \"{other}\"; byte-level BPE (gpt2) and SentencePiece (llama) are read"
        ))),
    }
}

fn texts<'a>(file: &GgufFile<'a>, key: &str) -> Option<Vec<&'a str>> {
    file.array(key)?
        .values()
        .map(|value| match value {
            Value::Text(text) => Some(text),
            _ => None,
        })
        .collect()
}

fn piece_kind(value: Value<'_>) -> PieceKind {
    let code = match value {
        Value::Unsigned(code) => code as i64,
        Value::Signed(code) => code,
        _ => 1,
    };
    match code {
        2 => PieceKind::Unknown,
        3 => PieceKind::Control,
        4 => PieceKind::UserDefined,
        5 => PieceKind::Unused,
        6 => PieceKind::Byte,
        _ => PieceKind::Normal,
    }
}

fn score(value: Value<'_>) -> f32 {
    match value {
        Value::Float(score) => score as f32,
        _ => 0.0,
    }
}

/// Byte-level BPE; gives also whether it adds a beginning-of-text token by habit.
fn byte_level(
    file: &GgufFile<'_>,
    tokens: &[&str],
    kinds: &[PieceKind],
    refuse: &dyn Fn(String) -> Error,
) -> Result<(Pipeline, bool)> {
    let name = file.text("tokenizer.ggml.pre").unwrap_or("default");
    let pre = pre_tokenizer(name)
        .ok_or_else(|| refuse(format!("its pre-tokenizer \"{name}\" is not known here")))?;
    let merges: Merges = texts(file, "tokenizer.ggml.merges")
        .ok_or_else(|| refuse("its tokenizer has no merges".to_owned()))?
        .into_iter()
        .map(|merge| {
            // A token may begin with a space; the one between them comes later.
            let split = merge.char_indices().skip(1).find(|(_, c)| *c == ' ');
            let (at, _) = split?;
            Some((merge[..at].to_owned(), merge[at + 1..].to_owned()))
        })
        .collect::<Option<_>>()
        .ok_or_else(|| refuse("its tokenizer has a merge that is not two tokens".to_owned()))?;
    let mut vocabulary = Vocab::default();
    for (id, token) in (0u32..).zip(tokens) {
        // Of doubles the first counts, as where tokens are looked up.
        vocabulary.entry((*token).to_owned()).or_insert(id);
    }
    let fail = |e: tokenizers::Error| refuse(format!("its tokenizer cannot be used ({e})"));
    let model = BPE::builder()
        .vocab_and_merges(vocabulary, merges)
        .ignore_merges(pre.ignore_merges)
        .build()
        .map_err(fail)?;
    let mut pipeline = Pipeline::new(model);
    if pre.composes {
        pipeline.with_normalizer(Some(NFC)).map_err(fail)?;
    }
    let mut steps: Vec<PreTokenizerWrapper> = Vec::new();
    for pattern in pre.patterns {
        let pattern = SplitPattern::Regex(pattern);
        let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false).map_err(fail)?;
        steps.push(split.into());
    }
    steps.push(ByteLevel::new(false, true, false).into());
    pipeline.with_pre_tokenizer(Some(Sequence::new(steps)));
    let added: Vec<AddedToken> = tokens
        .iter()
        .zip(kinds)
        .filter(|(token, kind)| {
            !token.is_empty() && matches!(kind, PieceKind::Control | PieceKind::UserDefined)
        })
        .map(|(token, kind)| {
            AddedToken::from(*token, *kind == PieceKind::Control).normalized(false)
        })
        .collect();
    pipeline.add_tokens(added).map_err(fail)?;
    Ok((pipeline, pre.adds_bos))
}
