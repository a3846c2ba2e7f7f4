use std::fmt;
use std::path::Path;

/// A model on the hub: `org/name`, `org/name/file.gguf` for one GGUF file of several, each with an optional `@revision`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubId {
    /// `org/name`
    pub repository: String,
    /// A GGUF file in it.
    pub file: Option<String>,
    /// Branch, tag or commit; the branch `main` where none is given.
    pub revision: Option<String>,
}

impl HubId {
    /// Reads a name as the hub writes it: letters, digits, `.`, `_` and `-`. `None` for what can only be a path.
    pub fn parse(text: &str) -> Option<Self> {
        let (name, revision) = match text.split_once('@') {
            Some((name, revision)) => (name, Some(revision)),
            None => (text, None),
        };
        let parts: Vec<&str> = name.split('/').collect();
        let (repository, file) = match parts.as_slice() {
            [_, _] => (name.to_owned(), None),
            [organisation, name, file] if is_gguf(file) => {
                (format!("{organisation}/{name}"), Some((*file).to_owned()))
            }
            _ => return None,
        };
        let whole = parts.iter().all(|part| is_part(part)) && revision.is_none_or(is_revision);
        // `org/model.gguf` is a path that leads nowhere.
        let named = file.is_some() || !is_gguf(&repository);
        (whole && named).then(|| Self { repository, file, revision: revision.map(str::to_owned) })
    }

    /// The branch, tag or commit asked for.
    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or("main")
    }

    /// How to bring the model here without this program.
    pub fn by_hand(&self) -> String {
        let Self { repository, file, .. } = self;
        let folder = repository.rsplit('/').next().unwrap_or_default();
        let one = file.as_ref().map(|file| format!(" {file}")).unwrap_or_default();
        let revision = self.revision.as_ref().map(|r| format!(" --revision {r}")).unwrap_or_default();
        let place = match file {
            Some(file) => format!("{folder}/{file}"),
            None => folder.to_owned(),
        };
        format!(
            "fetch it by hand, on any machine with network: `pip install huggingface_hub`, then \
             `hf download {repository}{one}{revision} --local-dir {folder}`, or save the files from \
             https://huggingface.co/{repository}/tree/{}; then give {place} in its place",
            self.revision()
        )
    }
}

fn is_gguf(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
}

fn is_part(part: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    !part.is_empty() && part.chars().all(plain) && !part.starts_with('.') && !part.contains("..")
}

fn is_revision(revision: &str) -> bool {
    revision.split('/').all(is_part)
}

impl fmt::Display for HubId {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.repository)?;
        if let Some(file) = &self.file {
            write!(f, "/{file}")?;
        }
        self.revision.as_ref().map_or(Ok(()), |revision| write!(f, "@{revision}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hub::HubError;

    #[test]
    fn names_are_told_from_paths() {
        let read = |text: &str| {
            HubId::parse(text).map(|id| (id.repository.clone(), id.file.clone(), id.revision().to_owned()))
        };
        let some = |repository: &str, file: Option<&str>, revision: &str| {
            Some((repository.to_owned(), file.map(str::to_owned), revision.to_owned()))
        };
        assert_eq!(read("org/Model-1.5_b"), some("org/Model-1.5_b", None, "main"));
        assert_eq!(read("org/name@v1.0"), some("org/name", None, "v1.0"));
        assert_eq!(read("org/name@refs/pr/1"), some("org/name", None, "refs/pr/1"));
        assert_eq!(read("org/name/a-Q4.gguf@main"), some("org/name", Some("a-Q4.gguf"), "main"));
        for path in [
            "model",
            "./model",
            "../model",
            "/org/name",
            "org/name/",
            "a/b/c",
            "org/model.gguf",
            "o rg/name",
            "org/..",
            "org/name@",
            "org/name@../x",
            "org\\name",
            "",
        ] {
            assert_eq!(read(path), None, "{path}");
        }
        let id = HubId::parse("org/name/a.gguf@v1").unwrap();
        assert_eq!(id.to_string(), "org/name/a.gguf@v1");
        let text = HubError::NotBuilt { name: id.to_string(), by_hand: id.by_hand() }.to_string();
        assert!(text.contains("no such file or folder") && text.contains("--features hub"), "{text}");
        assert!(text.contains("hf download org/name a.gguf --revision v1 --local-dir name"), "{text}");
        assert!(text.contains("then give name/a.gguf"), "{text}");
    }
}
