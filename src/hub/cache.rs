use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::download::{Client, Reached};
use super::listing::{Listing, Selection};
use super::{HubError, HubId};
use crate::device::write_durably;

/// Where models come from and where they are kept.
#[derive(Clone, Debug)]
pub struct HubParams {
    /// `https://huggingface.co`, or a mirror.
    pub endpoint: String,
    /// Sent to the endpoint alone, for models that ask for one.
    pub token: Option<String>,
    /// Holds `org--name/COMMIT/` for each model, `org--name/COMMIT.json` (its files) and `org--name/refs/` (the commit that
    /// a branch was at when it was last fetched whole).
    pub cache: PathBuf,
}

/// What goes on, for whoever waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress<'a> {
    /// The hub cannot be reached; this commit of the cache is taken.
    Offline { problem: &'a str, commit: &'a str },
    /// So many bytes of a file are here.
    File { name: &'a str, here: u64, size: u64 },
}

impl HubParams {
    /// The endpoint from `HF_ENDPOINT`, the token from `HF_TOKEN`, the cache from `LAPIDARY_CACHE`, else `lapidary/hub`
    /// in `XDG_CACHE_HOME` or `~/.cache`.
    pub fn from_environment() -> Result<Self, HubError> {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let endpoint = variable("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".into());
        if !endpoint.starts_with("http://") && !endpoint.starts_with("https://") {
            let problem = "must be an address that starts with https:// or http://";
            return Err(HubError::Variable { variable: "HF_ENDPOINT", problem });
        }
        let usual = || {
            let caches = variable("XDG_CACHE_HOME").map(PathBuf::from);
            let home = || std::env::home_dir().filter(|home| !home.as_os_str().is_empty());
            Some(caches.or_else(|| Some(home()?.join(".cache")))?.join("lapidary/hub"))
        };
        let cache = variable("LAPIDARY_CACHE").map(PathBuf::from).or_else(usual);
        let problem = "is not set and there is no home folder: set it to a folder for models";
        let cache = cache.ok_or(HubError::Variable { variable: "LAPIDARY_CACHE", problem })?;
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        Ok(Self { endpoint, token: variable("HF_TOKEN"), cache })
    }
}

/// The model in the cache, fetched where it is not: its folder, or its GGUF file.
///
/// A commit whose files are all there is taken without asking; a branch or tag is asked for, and taken as it was last
/// fetched whole where the hub cannot be reached. A file is written to a `.part` beside its place, continued where it stopped, checked
/// for its size and (large files) its SHA-256, and renamed.
pub fn fetch(id: &HubId, params: &HubParams, observe: &dyn Fn(Progress)) -> Result<PathBuf, HubError> {
    let place = Place { root: params.cache.join(id.repository.replace('/', "--")) };
    if let Some(here) = place.complete(id, id.revision()) {
        return Ok(here);
    }
    let client = Client::new(params);
    let listing = match client.listing(id)? {
        Reached::Yes(listing) => listing,
        Reached::No(problem) => {
            let commit = place.last_whole(id.revision());
            if let Some(here) = commit.as_ref().and_then(|commit| place.complete(id, commit)) {
                let commit = commit.as_deref().unwrap_or_default();
                observe(Progress::Offline { problem: &problem, commit });
                return Ok(here);
            }
            return Err(HubError::Offline {
                endpoint: params.endpoint.clone(),
                problem,
                id: id.to_string(),
                cache: params.cache.clone(),
                by_hand: id.by_hand(),
            });
        }
    };
    let selection = listing.select(id)?;
    let folder = place.folder(&listing.sha);
    fs::create_dir_all(&folder).map_err(|source| HubError::Io { file: folder.clone(), source })?;
    place.list(&listing)?;
    for file in &selection.files {
        client.file(id, &listing.sha, file, &folder, observe)?;
    }
    place.refer(id.revision(), &listing.sha)?;
    Ok(opened(&folder, &selection))
}

fn opened(folder: &Path, selection: &Selection) -> PathBuf {
    selection.open.as_ref().map_or(folder.to_owned(), |file| folder.join(file))
}

/// A repository's place in the cache.
struct Place {
    root: PathBuf,
}

impl Place {
    fn folder(&self, commit: &str) -> PathBuf {
        self.root.join(commit)
    }

    fn listing(&self, commit: &str) -> PathBuf {
        self.root.join(format!("{commit}.json"))
    }

    fn reference(&self, revision: &str) -> PathBuf {
        self.root.join("refs").join(revision.replace('/', "--"))
    }

    /// The commit that a branch or tag was at when it was last fetched whole.
    fn last_whole(&self, revision: &str) -> Option<String> {
        let commit = fs::read_to_string(self.reference(revision)).ok()?;
        Listing::is_commit(&commit).then_some(commit)
    }

    /// The model of a commit, where all its files are there with their sizes: they get their names once they are whole.
    fn complete(&self, id: &HubId, commit: &str) -> Option<PathBuf> {
        if !Listing::is_commit(commit) {
            return None;
        }
        let listing: Listing = serde_json::from_slice(&fs::read(self.listing(commit)).ok()?).ok()?;
        let selection = listing.select(id).ok()?;
        let folder = self.folder(commit);
        let there = |name: &str, size| fs::metadata(folder.join(name)).is_ok_and(|m| Some(m.len()) == size);
        let all = selection.files.iter().all(|file| there(&file.name, file.size));
        all.then(|| opened(&folder, &selection))
    }

    fn list(&self, listing: &Listing) -> Result<(), HubError> {
        let file = self.listing(&listing.sha);
        match serde_json::to_vec_pretty(listing) {
            Ok(json) => write(file, &json),
            Err(error) => Err(HubError::Io { file, source: error.into() }),
        }
    }

    /// Points a branch or tag at a commit, all of whose files are there: until then it is the older one that serves
    /// without the hub.
    fn refer(&self, revision: &str, commit: &str) -> Result<(), HubError> {
        let refs = self.root.join("refs");
        fs::create_dir_all(&refs).map_err(|source| HubError::Io { file: refs, source })?;
        write(self.reference(revision), commit.as_bytes())
    }
}

fn write(file: PathBuf, bytes: &[u8]) -> Result<(), HubError> {
    let written = write_durably(&file, |out: &mut dyn Write| out.write_all(bytes));
    written.map_err(|source| HubError::Io { file, source })
}
