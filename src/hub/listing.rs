use serde::{Deserialize, Serialize};

use super::{HubError, HubId};

/// Small files that a model may need, apart from its weights.
const SETTINGS: [&str; 11] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "vocab.json",
    "merges.txt",
    "packing.json",
    INDEX,
];
const INDEX: &str = "model.safetensors.index.json";
const WEIGHTS: &str = "model.safetensors";

/// What the hub's `/api/models/{repository}/revision/{revision}?blobs=true` says about a commit.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Listing {
    /// The commit.
    pub sha: String,
    pub siblings: Vec<Sibling>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Sibling {
    #[serde(rename = "rfilename")]
    pub name: String,
    pub size: Option<u64>,
    pub lfs: Option<Lfs>,
}

/// A large file's checksum.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Lfs {
    pub sha256: String,
}

/// The files to fetch, and which of them, or the folder that holds them, is the model.
#[derive(Clone, Debug)]
pub(super) struct Selection {
    pub files: Vec<Sibling>,
    /// The GGUF file to open; `None` for the folder.
    pub open: Option<String>,
}

impl Listing {
    /// A commit is forty hexadecimal digits: it becomes the name of a folder.
    pub fn is_commit(text: &str) -> bool {
        text.len() == 40 && text.chars().all(|c| c.is_ascii_hexdigit())
    }

    /// The safetensors of a folder with its settings, or a GGUF file and the parts that belong to it.
    pub fn select(&self, id: &HubId) -> Result<Selection, HubError> {
        // Names become files of one folder.
        let plain =
            |name: &str| !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\\', ':', '\0']);
        let all: Vec<&Sibling> = self.siblings.iter().filter(|file| plain(&file.name)).collect();
        let ggufs: Vec<&Sibling> =
            all.iter().copied().filter(|file| file.name.to_lowercase().ends_with(".gguf")).collect();
        let names = |files: &[&Sibling]| {
            let names: Vec<_> = files.iter().map(|file| format!("{}/{}", id.repository, file.name)).collect();
            names.join(", ")
        };
        if let Some(wanted) = &id.file {
            if !ggufs.iter().any(|file| file.name == *wanted) {
                let (id, file) = (id.repository.clone(), wanted.clone());
                return Err(HubError::NoFile { id, file, files: names(&ggufs) });
            }
            return Ok(parts(&ggufs, wanted));
        }
        let has = |name: &str| all.iter().any(|file| file.name == name);
        let is_weights = |name: &str| match has(WEIGHTS) {
            true => name == WEIGHTS,
            false => name.starts_with("model") && name.ends_with(".safetensors"),
        };
        if all.iter().any(|file| is_weights(&file.name)) {
            let wanted = |file: &&Sibling| {
                let setting = SETTINGS.contains(&file.name.as_str());
                is_weights(&file.name) || (setting && (file.name != INDEX || !has(WEIGHTS)))
            };
            return Ok(Selection {
                files: all.iter().copied().filter(wanted).cloned().collect(),
                open: None,
            });
        }
        let first_parts: Vec<&Sibling> = ggufs.iter().copied().filter(|file| is_first(&file.name)).collect();
        match first_parts.as_slice() {
            [] => Err(HubError::NoWeights { id: id.to_string() }),
            [one] => Ok(parts(&ggufs, &one.name)),
            several => Err(HubError::Several { id: id.to_string(), files: names(several) }),
        }
    }
}

/// Whether a GGUF file is whole, or the first of parts named `...-00001-of-00003.gguf`.
fn is_first(name: &str) -> bool {
    part_of(name).is_none_or(|(_, number, _)| number == "00001")
}

/// Stem, number and `of` of a part.
fn part_of(name: &str) -> Option<(&str, &str, &str)> {
    let stem = name.get(..name.len().checked_sub(5)?)?;
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let digits = |text: &str| text.len() == 5 && text.chars().all(|c| c.is_ascii_digit());
    (digits(number) && digits(count)).then_some((stem, number, count))
}

fn parts(ggufs: &[&Sibling], open: &str) -> Selection {
    let same = |name: &str| match (part_of(open), part_of(name)) {
        (Some((stem, _, count)), Some((other, _, others))) => (stem, count) == (other, others),
        _ => name == open,
    };
    let files = ggufs.iter().copied().filter(|file| same(&file.name)).cloned().collect();
    Selection { files, open: Some(open.to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selected(names: &[&str], id: &str) -> Result<(Vec<String>, Option<String>), String> {
        let sibling = |name: &&str| Sibling { name: (*name).into(), size: Some(1), lfs: None };
        let listing = Listing { sha: String::new(), siblings: names.iter().map(sibling).collect() };
        let selection = listing.select(&HubId::parse(id).unwrap()).map_err(|error| error.to_string())?;
        Ok((selection.files.into_iter().map(|file| file.name).collect(), selection.open))
    }

    #[test]
    fn what_a_model_needs_is_selected() {
        let names = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let whole = [
            "README.md",
            "config.json",
            "model.safetensors",
            "model.safetensors.index.json",
            "consolidated.safetensors",
        ];
        assert_eq!(selected(&whole, "a/b").unwrap(), (names(&["config.json", "model.safetensors"]), None));
        let shards = [
            "config.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            INDEX,
            "../x.safetensors",
            "onnx/model.safetensors",
        ];
        assert_eq!(selected(&shards, "a/b").unwrap().0, names(&shards[..4]));
        let ggufs = ["b-Q4.gguf", "b-Q8-00001-of-00002.gguf", "b-Q8-00002-of-00002.gguf"];
        assert!(selected(&ggufs, "a/b").unwrap_err().contains("a/b/b-Q4.gguf, a/b/b-Q8-00001-of-00002.gguf"));
        assert_eq!(selected(&ggufs, "a/b/b-Q4.gguf").unwrap(), (names(&ggufs[..1]), Some(ggufs[0].into())));
        let parts = (names(&ggufs[1..]), Some(ggufs[1].into()));
        assert_eq!(selected(&ggufs, "a/b/b-Q8-00001-of-00002.gguf").unwrap(), parts);
        assert_eq!(selected(&ggufs[1..], "a/b").unwrap(), parts);
        assert!(selected(&ggufs, "a/b/c.gguf").unwrap_err().contains("has no file `c.gguf`"));
        assert!(selected(&["README.md"], "a/b").unwrap_err().contains("no safetensors and no GGUF"));
    }
}
