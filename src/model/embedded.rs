//! The built-in model and the sample texts, compiled into the program: no file and no network needed.

use std::sync::{Arc, OnceLock};

use super::{
    Model, Tokenizer, WeightStore,
    hf::{assemble, map_config},
};
use crate::Result;

const ORIGIN: &str = "built-in model";
const CONFIG: &[u8] = include_bytes!("../../assets/built-in-model/config.json");
const WEIGHTS: &[u8] = include_bytes!("../../assets/built-in-model/model.safetensors");
const TOKENIZER: &[u8] = include_bytes!("../../assets/built-in-model/tokenizer.json");

/// The built-in model: read once, then shared.
///
/// # Errors
/// Only if the files it was built from were broken.
pub fn built_in() -> Result<Arc<Model>> {
    static MODEL: OnceLock<Arc<Model>> = OnceLock::new();
    if let Some(model) = MODEL.get() {
        return Ok(model.clone());
    }
    let model = Arc::new(assemble(
        "built-in".to_owned(),
        map_config(CONFIG, ORIGIN)?,
        &WeightStore::from_static(ORIGIN, WEIGHTS)?,
        Tokenizer::from_bytes(ORIGIN, TOKENIZER)?,
    )?);
    Ok(MODEL.get_or_init(|| model).clone())
}

/// A text that comes with the program.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Name in the menu and for `--text sample:NAME`.
    pub name: &'static str,
    /// What it is there to show, in one sentence.
    pub teaches: &'static str,
    /// The text.
    pub text: &'static str,
}

/// The sample texts; the first is shown at the first start.
pub const SAMPLES: &[Sample] = &[
    Sample {
        name: "held-out book",
        teaches: "The Time Machine, which the built-in model never saw: an honest loss.",
        text: include_str!("../../assets/samples/held-out-book.txt"),
    },
    Sample {
        name: "a page of a novel",
        teaches: "Pride and Prejudice, from the built-in model's training texts: a lower loss.",
        text: include_str!("../../assets/samples/novel-page.txt"),
    },
    Sample {
        name: "a passage that returns",
        teaches: "The same passage twice: heads that copy need the far past. The built-in model copies only a little; a pretrained one, a lot.",
        text: include_str!("../../assets/samples/passage-that-returns.txt"),
    },
    Sample {
        name: "source code",
        teaches: "Names come again and again at a distance; indentation and brackets are local.",
        text: include_str!("../../assets/samples/source-code.txt"),
    },
    Sample {
        name: "many scripts",
        teaches: "Characters that take several tokens: CJK, emoji with joiners, combining marks, right-to-left.",
        text: include_str!("../../assets/samples/many-scripts.txt"),
    },
    Sample {
        name: "long",
        teaches: "More than 8,000 tokens: cost follows the window, and most heads need little of it.",
        text: include_str!("../../assets/samples/long.txt"),
    },
];
