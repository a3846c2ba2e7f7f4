//! A folder with a plan, and the program at work in it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common;

/// Two blocks packed, two kept dense: long enough to be interrupted many times, short enough for a test.
pub const PLAN: &str = "bits = 1.0\n[layers.\"2-3\"]\nkeep_dense = true\n";

pub struct Folder {
    temporary: tempfile::TempDir,
}

impl Folder {
    pub fn new() -> Self {
        let temporary = tempfile::tempdir().unwrap();
        fs::write(temporary.path().join("plan.toml"), PLAN).unwrap();
        Self { temporary }
    }

    pub fn root(&self) -> &Path {
        self.temporary.path()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.temporary.path().join(name)
    }

    pub fn pack(&self, output: &str, more: &[&str]) -> Command {
        let mut command = self.pack_without_text(output, &[]);
        command.arg("--text").arg(common::tiny("calibration.txt")).args(more);
        command
    }

    pub fn pack_without_text(&self, output: &str, more: &[&str]) -> Command {
        let mut command = lapidary();
        command.arg("pack").arg(common::tiny("")).arg("--plan").arg(self.path("plan.toml"));
        command.args(["--window", "128", "-o"]).arg(self.path(output));
        command.args(more).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

pub fn lapidary() -> Command {
    Command::new(env!("CARGO_BIN_EXE_lapidary"))
}

/// The command under a limit on file sizes, in blocks of 512 bytes, which stands for a full disk: a write fails in the
/// middle of a file.
#[cfg(unix)]
pub fn limited(pack: &Command, blocks: usize) -> Command {
    let words: Vec<String> = pack.get_args().map(|arg| format!("'{}'", arg.to_str().unwrap())).collect();
    let program = pack.get_program().to_str().unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", &format!("trap '' XFSZ; ulimit -f {blocks}; exec '{program}' {}", words.join(" "))]);
    command
}

#[track_caller]
pub fn success(mut command: Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
pub fn failure(mut command: Command) -> String {
    let output = command.output().unwrap();
    assert!(!output.status.success());
    // miette wraps its lines.
    String::from_utf8_lossy(&output.stderr)
        .replace("\n  │ ", " ")
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
}

#[track_caller]
pub fn assert_same_files(one: &Path, other: &Path) {
    let names = |folder: &Path| {
        let mut names: Vec<_> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(one), names(other));
    for name in names(one) {
        assert!(
            fs::read(one.join(&name)).unwrap() == fs::read(other.join(&name)).unwrap(),
            "{name:?} differs"
        );
    }
}

pub fn records(partial: &Path) -> usize {
    let Ok(entries) = fs::read_dir(partial) else { return 0 };
    entries
        .filter(|entry| entry.as_ref().is_ok_and(|e| e.path().extension().is_some_and(|x| x == "json")))
        .count()
}
