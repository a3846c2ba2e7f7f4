use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::path::Path;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::model::text::hex;

/// What a file was, whatever its name: fits of others are no fits of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Nothing of a model
    pub bytes: Option<u64>,
    /// Of a model its fingerprint
    pub sha256: String,
}

/// A row file as it was found.
pub(super) struct Seen {
    pub origin: Origin,
    /// Whether it is a NumPy file, which holds one array
    pub npy: bool,
    stamp: Stamp,
}

/// What changes with a file, without reading it.
type Stamp = (u64, Option<SystemTime>);

fn stamp(found: &Metadata) -> Stamp {
    (found.len(), found.modified().ok())
}

impl Seen {
    /// Reads a file in chunks: it may be larger than the memory.
    pub fn of(file: &Path) -> Result<Self, String> {
        let cannot = |e: io::Error| format!("cannot be read: {e}");
        let found = file.metadata().map_err(cannot)?;
        if !found.is_file() {
            return Err("cannot be read: it is no regular file".into());
        }
        let (mut opened, mut hash) = (File::open(file).map_err(cannot)?, Sha256::new());
        let (mut buffer, mut bytes, mut npy) = (vec![0; 1 << 20], 0, false);
        loop {
            let read = match opened.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => &buffer[..read],
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(cannot(e)),
            };
            npy |= bytes == 0 && read.starts_with(b"\x93NUMPY");
            bytes += read.len() as u64;
            hash.update(read);
        }
        let origin = Origin { bytes: Some(bytes), sha256: hex(&hash.finalize()) };
        Ok(Self { origin, npy, stamp: stamp(&found) })
    }

    /// That the file is still the one that was found, as far as its size and time tell.
    pub fn still(&self, file: &Path) -> Result<(), String> {
        match file.metadata() {
            Ok(found) if stamp(&found) == self.stamp => Ok(()),
            _ => Err("was changed while the battery ran; leave it as it is, and resume".into()),
        }
    }
}
