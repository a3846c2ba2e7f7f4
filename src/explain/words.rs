use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};

use super::ExplainError;
use crate::model::{Capture, Decoder, Run, Tokenizer};

/// Words of one kind, in their own order, and sentences with `{}` where a word goes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WordSet {
    pub words: Vec<String>,
    pub templates: Vec<String>,
}

/// What is taken off the rows before they are explained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Centre {
    /// Nothing but the mean of all.
    All,
    /// The mean of each template: what a sentence says beside its word.
    Template,
}

/// The residual stream at the last token of each word in each sentence, after every block.
#[derive(Clone, Debug)]
pub struct WordRows {
    /// Numbers a row.
    pub width: usize,
    /// After each block: words x templates rows, the templates of one word side by side.
    pub layers: Vec<Vec<f64>>,
    /// Word and template of each row.
    pub word: Vec<usize>,
    pub template: Vec<usize>,
    /// Words that are several tokens; their last one was read.
    pub several: Vec<String>,
}

/// Sets of words by name.
///
/// # Errors
/// The file, and what about it.
pub fn read_words(file: &Path) -> Result<BTreeMap<String, WordSet>, ExplainError> {
    let wrong = |what: String| ExplainError::Words { file: file.into(), what };
    let text = std::fs::read_to_string(file).map_err(|e| wrong(format!("cannot be read: {e}")))?;
    let Sets(sets) = serde_json::from_str(&text).map_err(|e| {
        wrong(format!(
            "is no list of words, {{\"name\": {{\"words\": [...], \"templates\": [\"... {{}}\"]}}}}: {e}"
        ))
    })?;
    for (name, set) in &sets {
        // A set's name is that of its folder.
        if name.trim().is_empty() || name.starts_with('.') || name.contains(['/', '\\', ':', '\0']) {
            return Err(wrong(format!(
                "`{name}` cannot be a folder's name: begin it with no dot, without / \\ and :"
            )));
        }
        let mut seen = BTreeSet::new();
        if let Some(word) = set.words.iter().find(|word| word.trim().is_empty() || !seen.insert(word.trim()))
        {
            let what = if word.trim().is_empty() { "an empty word" } else { "a word twice" };
            return Err(wrong(format!("`{name}` has {what}: \"{word}\"")));
        }
        if set.words.len() < 2 || set.templates.is_empty() {
            return Err(wrong(format!("`{name}` needs two words and one template at least")));
        }
        if let Some(template) = set.templates.iter().find(|template| template.matches("{}").count() != 1) {
            return Err(wrong(format!("the template \"{template}\" of `{name}` must have one {{}}")));
        }
    }
    if sets.is_empty() { Err(wrong("holds no words".into())) } else { Ok(sets) }
}

/// Sets by name, each once.
struct Sets(BTreeMap<String, WordSet>);

impl<'de> Deserialize<'de> for Sets {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Named;
        impl<'de> Visitor<'de> for Named {
            type Value = Sets;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("sets of words by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Sets, A::Error> {
                let mut sets = BTreeMap::new();
                while let Some((name, set)) = map.next_entry::<String, WordSet>()? {
                    if sets.contains_key(&name) {
                        return Err(A::Error::custom(format!("there are two sets `{name}`")));
                    }
                    sets.insert(name, set);
                }
                Ok(Sets(sets))
            }
        }
        from.deserialize_map(Named)
    }
}

/// Runs every sentence up to its word, whose last token is read: what follows it changes nothing before it.
///
/// # Errors
/// Sentences that have no tokens, or more than the model takes.
pub fn word_rows(
    decoder: &Decoder,
    tokenizer: &Tokenizer,
    start: Option<u32>,
    set: &WordSet,
) -> Result<WordRows, ExplainError> {
    let config = decoder.config();
    let mut rows = WordRows {
        width: config.hidden,
        layers: vec![Vec::new(); config.layers],
        word: Vec::new(),
        template: Vec::new(),
        several: Vec::new(),
    };
    for (index, word) in set.words.iter().enumerate() {
        for (template, text) in set.templates.iter().enumerate() {
            let before = text.split("{}").next().unwrap_or_default();
            let sentence = format!("{before}{word}");
            let mut tokens: Vec<u32> = start.into_iter().collect();
            tokens.extend(tokenizer.encode(&sentence)?);
            if tokens.is_empty() {
                return Err(ExplainError::NoTokens { sentence });
            }
            if template == 0
                && tokenizer.encode(&sentence)?.len() > tokenizer.encode(before.trim_end())?.len() + 1
            {
                rows.several.push(word.clone());
            }
            let len = tokens.len();
            let mut last = LastRow { layers: &mut rows.layers };
            decoder.hidden(&tokens, Run::Windows { len }, &mut last)?;
            rows.word.push(index);
            rows.template.push(template);
        }
    }
    Ok(rows)
}

struct LastRow<'a> {
    layers: &'a mut [Vec<f64>],
}

impl Capture for LastRow<'_> {
    fn block_output(&mut self, layer: usize, x: &mut [f32], width: usize) {
        self.layers[layer].extend(x[x.len() - width..].iter().map(|v| f64::from(*v)));
    }
}

impl WordRows {
    /// The rows after one block, counted from 0.
    pub fn layer(&self, layer: usize, centre: Centre) -> Vec<f64> {
        let mut x = self.layers[layer].clone();
        if centre == Centre::Template {
            let templates = self.template.iter().max().map_or(0, |last| last + 1);
            for template in 0..templates {
                let mine: Vec<usize> =
                    (0..self.template.len()).filter(|i| self.template[*i] == template).collect();
                for j in 0..self.width {
                    let mean = mine.iter().map(|i| x[i * self.width + j]).sum::<f64>() / mine.len() as f64;
                    mine.iter().for_each(|i| x[i * self.width + j] -= mean);
                }
            }
        }
        x
    }
}
