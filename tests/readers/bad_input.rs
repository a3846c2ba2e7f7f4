//! What the tests of bad input share, and paths that lead nowhere.

use std::path::Path;

use lapidary::model::Checkpoint;

/// The error of opening `path`, or of building its tokenizer.
pub fn error(path: &Path) -> String {
    match Checkpoint::open(path).and_then(|checkpoint| checkpoint.tokenizer()) {
        Err(error) => error.to_string(),
        Ok(_) => "opened without an error".into(),
    }
}

pub fn check(case: &str, error: &str, expected: &[&str]) {
    for part in expected {
        assert!(error.contains(part), "{case}: `{part}` is not in: {error}");
    }
}

#[test]
fn paths_that_are_no_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("notes.txt");
    std::fs::write(&text, "hello").unwrap();
    check("a text file", &error(&text), &["notes.txt: not a checkpoint", "or a .gguf file"]);
    check("nothing", &error(&folder.path().join("absent.gguf")), &["absent.gguf: cannot be read"]);
    check("nothing at all", &error(&folder.path().join("absent")), &["absent: cannot be read"]);
    std::fs::create_dir(folder.path().join("dir.gguf")).unwrap();
    check("a folder", &error(&folder.path().join("dir.gguf")), &["not a checkpoint: give a folder"]);
}
