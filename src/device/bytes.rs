use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;

/// Immutable bytes, shared by reference: a part of a mapped file, or a buffer on the heap.
///
/// Cloning costs one reference count. A mapped part stays in the page cache and is not counted as heap.
#[derive(Clone)]
pub struct Bytes {
    source: Source,
    range: Range<usize>,
}

#[derive(Clone)]
enum Source {
    Mapped(Arc<Mmap>),
    Owned(Arc<[u8]>),
}

impl Bytes {
    /// All bytes of a regular file, mapped: they are read when they are looked at. The file must not change while they
    /// are in use.
    pub fn map(path: &Path) -> io::Result<Self> {
        // Asked before opening: to open a pipe waits for its writer.
        if !path.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let file = File::open(path)?;
        // SAFETY: the map is only read; that the file stays as it is, is the documented condition.
        let map = unsafe { Mmap::map(&file) }?;
        Ok(Self { range: 0..map.len(), source: Source::Mapped(Arc::new(map)) })
    }

    /// A part of these bytes, or `None` where it reaches past the end.
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        self.as_slice().get(range.clone())?;
        let range = self.range.start + range.start..self.range.start + range.end;
        Some(Self { source: self.source.clone(), range })
    }

    pub fn as_slice(&self) -> &[u8] {
        match &self.source {
            Source::Mapped(map) => &map[self.range.clone()],
            Source::Owned(bytes) => &bytes[self.range.clone()],
        }
    }

    pub fn len(&self) -> usize {
        self.as_slice().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self { range: 0..bytes.len(), source: Source::Owned(bytes.into()) }
    }
}

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self.source {
            Source::Mapped(_) => "mapped",
            Source::Owned(_) => "owned",
        };
        write!(f, "Bytes({kind}, {} bytes)", self.len())
    }
}
