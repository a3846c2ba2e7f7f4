use crate::device::DeviceError;
use crate::device::cuda::{Buffer, Cuda, Event, Pinned, Stream};

/// Chunks of a ring: as many as may be in flight, less the one that is being filled.
const CHUNKS: usize = 4;

/// Words on their way to the device: pinned memory and its image there, in chunks that are used in turn. A chunk is
/// filled again once everything that was queued before it was left has run.
pub(super) struct Ring {
    host: Pinned<u32>,
    device: Buffer<u32>,
    left: Vec<Event>,
    /// Words of a chunk.
    len: usize,
    chunk: usize,
    /// Words of the current chunk that are filled, and of those the ones that are on their way.
    filled: usize,
    sent: usize,
}

impl Ring {
    /// A ring whose chunks hold `len` words.
    pub fn new(cuda: &Cuda, len: usize) -> Result<Self, DeviceError> {
        Ok(Self {
            host: Pinned::new(cuda, len * CHUNKS)?,
            device: Buffer::new(cuda, len * CHUNKS)?,
            left: (0..CHUNKS).map(|_| Event::new(cuda)).collect::<Result<_, _>>()?,
            len,
            chunk: 0,
            filled: 0,
            sent: 0,
        })
    }

    /// Words of a chunk: the most that one [`place`](Self::place) takes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the current chunk has room for that many words.
    pub fn has_room(&self, words: usize) -> bool {
        self.filled + words <= self.len
    }

    /// Goes on to the next chunk; waits for it where the device is that far behind. Everything placed was sent, and
    /// what reads it was queued.
    pub fn turn(&mut self, stream: &Stream) -> Result<(), DeviceError> {
        self.left[self.chunk].record(stream)?;
        self.chunk = (self.chunk + 1) % CHUNKS;
        (self.filled, self.sent) = (0, 0);
        self.left[self.chunk].wait()
    }

    /// Copies words to the current chunk, which has room for them, and returns their index in the ring.
    pub fn place(&mut self, words: &[u32]) -> usize {
        let at = self.chunk * self.len + self.filled;
        self.host[at..at + words.len()].copy_from_slice(words);
        self.filled += words.len();
        at
    }

    /// Queues the copy of everything placed and not yet sent.
    pub fn send(&mut self, stream: &Stream) -> Result<(), DeviceError> {
        if self.sent == self.filled {
            return Ok(());
        }
        let (from, to) = (self.chunk * self.len + self.sent, self.chunk * self.len + self.filled);
        self.sent = self.filled;
        // SAFETY: the host's words stay as they are until this chunk's turn comes again, which waits for the copy.
        unsafe { self.device.queue_upload_at(stream, from, &self.host[from..to]) }
    }

    /// Queues a copy of words of the current chunk, placed last, to another buffer.
    pub fn divert(
        &mut self,
        stream: &Stream,
        words: &[f32],
        target: &Buffer<f32>,
        at: usize,
    ) -> Result<(), DeviceError> {
        self.send(stream)?;
        let from = self.place(bytemuck::cast_slice(words));
        self.sent = self.filled;
        let placed = bytemuck::cast_slice(&self.host[from..from + words.len()]);
        // SAFETY: as for `send`.
        unsafe { target.queue_upload_at(stream, at, placed) }
    }

    /// The address on the device of a word that was placed.
    pub fn address(&self, at: usize) -> u64 {
        self.device.at(at)
    }
}
