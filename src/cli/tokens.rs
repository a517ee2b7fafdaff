//! `headscope tokens`: how a model's tokenizer cuts a text.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde::Serialize;

use super::{BosChoice, emit, show_progress};
use crate::{
    model::{Model, Tokenizer, built_in},
    session::text_sources,
};

#[derive(Debug, Args)]
pub(super) struct TokensArgs {
    /// Model: a folder, a tokenizer.json, a GGUF file (with weights or without), or a name on the hub; the built-in
    /// model if left out
    model: Option<PathBuf>,
    /// Text: a file, "-" for standard input, or "sample:NAME"
    #[arg(long, value_name = "FILE|-|sample:NAME")]
    text: String,
    /// Whether the text begins with the token for a beginning; auto: as the tokenizer does
    #[arg(long, value_enum, default_value_t = BosChoice::Auto)]
    bos: BosChoice,
    /// Form of the result
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Write the result to a file
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// A token a line: position, id, first byte, last byte, what it says
    Text,
    /// One object
    Json,
    /// The ids, a text's a line
    Ids,
}

#[derive(Serialize)]
struct Listing<'a> {
    tokens: usize,
    bytes: usize,
    ids: &'a [u32],
    /// As the vocabulary writes them.
    pieces: Vec<&'a str>,
    /// First byte and the one after the last; tokens that share a character all have the whole of it.
    byte_ranges: Vec<[usize; 2]>,
}

pub(super) fn run(args: &TokensArgs) -> Result<()> {
    let mut texts = text_sources(&args.text)?;
    let text = match (texts.pop(), texts.is_empty()) {
        (Some(source), true) => source.text,
        _ => anyhow::bail!("{} is a folder: name one text", args.text),
    };
    let built_in_model;
    let opened;
    let (tokenizer, vocab_size): (&Tokenizer, usize) = match &args.model {
        Some(path) => {
            opened = Model::open_tokenizer(path, &mut show_progress(false))?;
            (&opened.0, opened.1)
        }
        None => {
            built_in_model = built_in()?;
            (&built_in_model.tokenizer, built_in_model.spec.vocab_size)
        }
    };
    let tokens = tokenizer.encode(&text, vocab_size, args.bos.into())?;
    let result = match args.format {
        Format::Json => {
            let listing = Listing {
                tokens: tokens.len(),
                bytes: text.len(),
                ids: &tokens.ids,
                pieces: (0..tokens.len()).map(|t| tokens.piece(t)).collect(),
                byte_ranges: tokens.ranges.iter().map(|r| [r.start, r.end]).collect(),
            };
            serde_json::to_string(&listing)? + "\n"
        }
        Format::Ids => {
            let ids: Vec<String> = tokens.ids.iter().map(u32::to_string).collect();
            ids.join(" ") + "\n"
        }
        Format::Text => (0..tokens.len())
            .map(|t| {
                let range = &tokens.ranges[t];
                let (id, label) = (tokens.ids[t], tokens.label(t));
                format!("{t}\t{id}\t{}\t{}\t{label}\n", range.start, range.end)
            })
            .collect(),
    };
    emit(&result, args.out.as_ref())
}
