use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// Writes a file that is either whole or not there: to a temporary name in the same folder, synced, then renamed; its name
/// survives a power cut too.
///
/// A file of that name is replaced; anything else of that name (a folder, a device) is an error. On an error the
/// temporary file is removed and what was there stays.
pub fn write_durably(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    write_whole(path, write)?;
    sync_folder(path.parent().unwrap_or(Path::new(".")))
}

/// The same, but that its name may be lost in a power cut until its folder is synced: for what another file will name, which
/// is written durably after it.
pub fn write_whole(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    if path.symlink_metadata().is_ok_and(|there| !there.is_file()) {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "something that is no regular file is in the way",
        ));
    }
    // The process number keeps two programs, and files of the user's, apart.
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}.tmp", std::process::id()));
    let temporary = Path::new(&temporary);
    let written = (|| {
        let mut file = io::BufWriter::with_capacity(1 << 20, File::create(temporary)?);
        write(&mut file)?;
        file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        fs::rename(temporary, path)
    })();
    if written.is_err() {
        // The first error is the one to report; a file that cannot be removed either changes nothing about it.
        let _ = fs::remove_file(temporary);
    }
    written
}

/// Makes a rename inside `folder` survive a power cut. Only Unix can sync a folder.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_leaves_what_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kept");
        write_durably(&path, |out| out.write_all(b"first")).unwrap();
        let failed = write_durably(&path, |out| {
            out.write_all(b"second")?;
            Err(io::ErrorKind::StorageFull.into())
        });
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(fs::read(&path).unwrap(), b"first");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn only_regular_files_are_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("folder");
        fs::create_dir(&path).unwrap();
        let refused = write_durably(&path, |out| out.write_all(b"x")).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        #[cfg(unix)]
        {
            let link = folder.path().join("link");
            std::os::unix::fs::symlink("/dev/null", &link).unwrap();
            assert!(write_durably(&link, |out| out.write_all(b"x")).is_err());
            assert!(link.is_symlink());
        }
    }
}
