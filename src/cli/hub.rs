use std::path::{Path, PathBuf};

use miette::Result;

use lapidary::hub::HubId;

/// A model's place on this machine: the path as it is where it leads to something or cannot be a name on the hub, else
/// where that model is fetched to.
pub fn local(path: &Path) -> Result<PathBuf> {
    match path.to_str().filter(|_| !path.exists()).and_then(HubId::parse) {
        None => Ok(path.into()),
        Some(id) => fetched(&id),
    }
}

#[cfg(not(feature = "hub"))]
fn fetched(id: &HubId) -> Result<PathBuf> {
    use lapidary::hub::HubError;
    use miette::IntoDiagnostic;

    Err(HubError::NotBuilt { name: id.to_string(), by_hand: id.by_hand() }).into_diagnostic()
}

#[cfg(feature = "hub")]
fn fetched(id: &HubId) -> Result<PathBuf> {
    use lapidary::hub::{HubParams, Progress, fetch};
    use miette::IntoDiagnostic;

    use super::progress::bytes_bar;

    let params = HubParams::from_environment().into_diagnostic()?;
    let bar = bytes_bar();
    let observe = |progress: Progress| match progress {
        Progress::Offline { problem, commit } => bar.suspend(|| {
            eprintln!(
                "{} cannot be reached ({problem}): taking commit {commit} from the cache",
                params.endpoint
            );
        }),
        Progress::File { name, here, size } => {
            bar.set_length(size);
            bar.set_message(name.to_owned());
            bar.set_position(here);
        }
    };
    let place = fetch(id, &params, &observe).into_diagnostic();
    bar.finish_and_clear();
    place
}
