//! What the tests of several files share.

use std::path::PathBuf;

/// SmolLM2-135M-Instruct as Q4_1 GGUF: the file that `LAPIDARY_SMOLLM2` names, or the one in `~/.cache/lapidary`.
///
/// # Panics
/// Without the file when `LAPIDARY_REQUIRE` names `smollm2`; otherwise a missing file prints `not run` and is `None`.
pub fn smollm2() -> Option<PathBuf> {
    let cached = || {
        Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache/lapidary/SmolLM2-135M-Instruct.Q4_1.gguf"))
    };
    let path = std::env::var_os("LAPIDARY_SMOLLM2").map(PathBuf::from).or_else(cached);
    let found = path.filter(|path| path.is_file());
    if found.is_none() {
        let required = std::env::var("LAPIDARY_REQUIRE").unwrap_or_default();
        assert!(
            !required.split(',').any(|name| name.trim() == "smollm2"),
            "smollm2 is required, but not there"
        );
        eprintln!("not run: needs SmolLM2-135M-Instruct.Q4_1.gguf (set LAPIDARY_SMOLLM2)");
    }
    found
}
