//! [`Document`]: a model and one or several texts, tokenised and cut into passages.

use std::sync::Arc;

use crate::{
    Error, Result,
    model::{Bos, Model, TokenizedText},
};

/// Most passages of a document; each is run again whenever the windows change.
pub const MAX_PASSAGES: usize = 256;

/// What becomes of a text that is longer than the model was made for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LongTexts {
    /// It stays whole where the model's positions go on, and is cut where they end.
    #[default]
    Whole,
    /// It is cut.
    Cut,
    /// It is run in blocks, each from its own beginning; numbers are means over them.
    Blocks,
}

/// How texts become passages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextSettings {
    /// At most so many tokens of a text, or of a block.
    pub context: Option<usize>,
    /// What becomes of longer ones.
    pub long: LongTexts,
    /// Whether a passage begins with the token for a beginning.
    pub bos: Bos,
}

/// A text as it was given.
#[derive(Clone, Debug)]
pub struct SourceText {
    /// What it is called: a sample's or a file's name.
    pub name: String,
    /// The text.
    pub text: String,
}

/// What the model runs on at once: a text, or a block of one.
#[derive(Clone, Debug)]
pub struct Passage {
    /// Which of the document's texts it is from.
    pub source: usize,
    /// What it is called.
    pub name: String,
    /// The text and its tokens.
    pub text: Arc<TokenizedText>,
    /// The token ids; another `Arc` for another passage.
    pub tokens: Arc<Vec<u32>>,
}

/// A model and texts, tokenised: what takes time to open, and is opened away from the window's thread.
#[derive(Clone, Debug)]
pub struct Document {
    /// The model.
    pub model: Arc<Model>,
    /// What the text is called: a sample's or a file's name.
    pub text_name: String,
    /// The text and its tokens: those of the passage that is shown.
    pub text: Arc<TokenizedText>,
    /// The token ids; another `Arc` for another text.
    pub tokens: Arc<Vec<u32>>,
    /// The texts as they were given.
    pub sources: Arc<Vec<SourceText>>,
    /// All passages; one for a text that is run whole.
    pub passages: Arc<Vec<Passage>>,
    /// Which of them is shown.
    pub current: usize,
    /// Tokens of all the others.
    pub others: Arc<Vec<Arc<Vec<u32>>>>,
    /// How passages were made.
    pub settings: TextSettings,
    /// What the user should know of it, in a sentence.
    pub notice: Option<String>,
}

impl Document {
    /// Reads one text with the model's tokenizer.
    ///
    /// # Errors
    /// When the tokenizer cannot read the text, or the text is empty.
    pub fn new(
        model: Arc<Model>,
        text_name: &str,
        text: &str,
        settings: TextSettings,
    ) -> Result<Self> {
        let source = SourceText {
            name: text_name.to_owned(),
            text: text.to_owned(),
        };
        Self::of_texts(model, vec![source], settings)
    }

    /// Reads several texts with the model's tokenizer.
    ///
    /// # Errors
    /// As [`Self::new`]; names the text.
    pub fn of_texts(
        model: Arc<Model>,
        sources: Vec<SourceText>,
        settings: TextSettings,
    ) -> Result<Self> {
        Self::read(model, Arc::new(sources), settings)
    }

    /// The same texts with another model or other settings.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn again(&self, model: Arc<Model>, settings: TextSettings) -> Result<Self> {
        Self::read(model, self.sources.clone(), settings)
    }

    fn read(
        model: Arc<Model>,
        sources: Arc<Vec<SourceText>>,
        settings: TextSettings,
    ) -> Result<Self> {
        let mut passages = Vec::new();
        let mut notices = Vec::new();
        for (index, source) in sources.iter().enumerate() {
            let whole = model
                .tokenizer
                .encode(&source.text, model.spec.vocab_size, settings.bos)
                .and_then(|tokens| match tokens.is_empty() {
                    true => Err(Error::Text(
                        "the text is empty: type or open one with at least one token".to_owned(),
                    )),
                    false => Ok(tokens),
                })
                .map_err(|error| match sources.len() {
                    1 => error,
                    _ => Error::Text(format!("{}: {error}", source.name)),
                })?;
            let (parts, notice) = parts(&model, &source.name, whole, settings)?;
            notices.extend(notice);
            let count = parts.len();
            for (number, text) in parts.into_iter().enumerate() {
                passages.push(Passage {
                    source: index,
                    name: match count {
                        1 => source.name.clone(),
                        _ => format!("{}, block {} of {count}", source.name, number + 1),
                    },
                    tokens: Arc::new(text.ids.clone()),
                    text: Arc::new(text),
                });
            }
        }
        if passages.len() > MAX_PASSAGES {
            notices.push(format!(
                "of {} passages the first {MAX_PASSAGES} are used",
                passages.len()
            ));
            passages.truncate(MAX_PASSAGES);
        }
        let Some(first) = passages.first() else {
            return Err(Error::Text("there is no text: open or type one".to_owned()));
        };
        let notice = notices.split_first().map(|(first, rest)| match rest.len() {
            0 => first.clone(),
            n => format!("{first} (and {n} more like it)"),
        });
        Ok(Self {
            others: Arc::new(others(&passages, 0)),
            text_name: first.name.clone(),
            text: first.text.clone(),
            tokens: first.tokens.clone(),
            model,
            sources,
            current: 0,
            settings,
            notice,
            passages: Arc::new(passages),
        })
    }

    /// Makes another passage the one that is shown; one that is not there changes nothing.
    pub fn show(&mut self, index: usize) {
        if let Some(passage) = self.passages.get(index) {
            self.current = index;
            self.text_name.clone_from(&passage.name);
            self.text = passage.text.clone();
            self.tokens = passage.tokens.clone();
            self.others = Arc::new(others(&self.passages, index));
        }
    }

    /// What the texts are called together.
    pub fn title(&self) -> String {
        match self.sources.len() {
            1 => self.sources[0].name.clone(),
            n => format!("{n} texts"),
        }
    }

    /// The text that the passage on show is from.
    pub fn source(&self) -> Option<&SourceText> {
        let passage = self.passages.get(self.current)?;
        self.sources.get(passage.source)
    }
}

fn others(passages: &[Passage], current: usize) -> Vec<Arc<Vec<u32>>> {
    let tokens = passages.iter().map(|p| p.tokens.clone());
    let others = tokens.enumerate().filter(|(index, _)| *index != current);
    others.map(|(_, tokens)| tokens).collect()
}

/// The passages of one text, and what the user should know of them.
fn parts(
    model: &Model,
    name: &str,
    whole: TokenizedText,
    settings: TextSettings,
) -> Result<(Vec<TokenizedText>, Option<String>)> {
    let made_for = model.spec.context;
    let count = whole.len();
    let asked = settings.context.unwrap_or(usize::MAX);
    let most = model.spec.max_tokens().unwrap_or(usize::MAX);
    match settings.long {
        LongTexts::Blocks => {
            let length = settings.context.unwrap_or(made_for).min(most).max(2);
            if count <= length {
                return Ok((vec![whole], None));
            }
            let leading = model.tokenizer.leading(settings.bos);
            let blocks = whole.blocks(length, leading.map(|id| (id, model.tokenizer.piece(id))));
            let notice = format!(
                "{name} has {count} tokens and runs in {} blocks of {length}: numbers are means over all of them",
                blocks.len()
            );
            Ok((blocks, Some(notice)))
        }
        LongTexts::Cut | LongTexts::Whole => {
            let bound = match settings.long {
                LongTexts::Whole => most,
                _ => most.min(made_for),
            };
            // What was asked for needs no notice.
            if count.min(asked) > bound {
                let notice = format!(
                    "{name} has {count} tokens, but {} takes {bound}: it is cut there; it can be run in blocks, too",
                    model.name
                );
                return Ok((vec![whole.truncated(bound)], Some(notice)));
            }
            let cut = whole.truncated(asked);
            let notice = (cut.len() > made_for).then(|| {
                format!(
                    "{} tokens are more than the {made_for} that {} was made for: expect a higher loss beyond them, \
                     or run the text in blocks",
                    cut.len(),
                    model.name
                )
            });
            Ok((vec![cut], notice))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::built_in;

    fn document(text: &str, settings: TextSettings) -> Document {
        Document::new(built_in().unwrap(), "t", text, settings).unwrap()
    }

    #[test]
    fn blocks_hold_the_text_once() {
        let text = "One two three, four five six. Ünïcödé 数学 ".repeat(40);
        let whole = document(&text, TextSettings::default());
        let settings = TextSettings {
            context: Some(64),
            long: LongTexts::Blocks,
            ..TextSettings::default()
        };
        let blocks = document(&text, settings);
        assert!(blocks.passages.len() > 5);
        assert!(blocks.notice.as_ref().unwrap().contains("blocks of 64"));
        let leading = whole.model.tokenizer.leading(Bos::Auto);
        let mut ids: Vec<u32> = leading.into_iter().collect();
        let mut bytes = 0;
        for passage in blocks.passages.iter() {
            assert!(passage.tokens.len() <= 64);
            let mut own = passage.tokens.as_slice();
            if let Some(bos) = leading {
                assert_eq!(own[0], bos);
                own = &own[1..];
            }
            ids.extend(own);
            bytes += passage.text.text.len();
            for range in &passage.text.ranges {
                assert!(passage.text.text.get(range.clone()).is_some());
            }
        }
        assert_eq!(ids, *whole.tokens);
        // A character that two blocks share stands in both.
        assert!(bytes >= text.len() && bytes < text.len() + 4 * blocks.passages.len());
    }

    #[test]
    fn long_texts_are_cut_with_a_notice_where_that_is_wanted() {
        let text = "One more word. ".repeat(3000);
        let whole = document(&text, TextSettings::default());
        let made_for = whole.model.spec.context;
        assert!(whole.tokens.len() > made_for);
        assert!(whole.notice.as_ref().unwrap().contains("made for"));
        let cut = TextSettings {
            long: LongTexts::Cut,
            ..TextSettings::default()
        };
        let cut = document(&text, cut);
        assert_eq!(cut.tokens.len(), made_for);
        assert!(cut.notice.as_ref().unwrap().contains("is cut there"));
        let asked = TextSettings {
            context: Some(10),
            long: LongTexts::Cut,
            ..TextSettings::default()
        };
        let asked = document(&text, asked);
        assert_eq!((asked.tokens.len(), asked.notice.clone()), (10, None));
    }

    #[test]
    fn several_texts_are_passages_and_a_bad_one_is_named() {
        let source = |name: &str, text: &str| SourceText {
            name: name.to_owned(),
            text: text.to_owned(),
        };
        let model = built_in().unwrap();
        let texts = vec![source("a", "First text."), source("b", "Second one.")];
        let mut both = Document::of_texts(model.clone(), texts, TextSettings::default()).unwrap();
        assert_eq!(both.passages.len(), 2);
        assert_eq!(both.title(), "2 texts");
        both.show(1);
        assert_eq!(both.text_name, "b");
        both.show(7);
        assert_eq!(both.text_name, "b");
        let texts = vec![source("a", "First text."), source("b", "")];
        let error = Document::of_texts(model, texts, TextSettings::default()).unwrap_err();
        assert!(error.to_string().starts_with("b: "), "{error}");
    }
}
