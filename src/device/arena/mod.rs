//! One block of f32 on a device, and kernels that work on many parts of it at once.
//!
//! A [`Program`] is one kernel in two languages. Both see the same two things: the arena, and a [`Table`] with a few
//! words for each item (where its matrices lie, how large they are). One launch works on all items of a table, so a
//! device with a single queue is as busy as one with many. The host has no programs: ops work on [`Memory`] there.

#[cfg(feature = "cuda")]
mod cuda;
mod host;
mod layout;
mod product;
#[cfg(feature = "cuda")]
mod ring;
mod table;
#[cfg(feature = "wgpu")]
mod wgpu;

use std::time::Duration;

use super::{Device, DeviceError, Telemetry};

#[cfg(feature = "cuda")]
pub use cuda::Card;
pub use host::Memory;
pub use layout::Layout;
pub use product::{Operand, Precision, Product};
pub use table::{Table, View, float_word};

/// A kernel, with its text for each kind of device and the constants that stand before both.
#[derive(Debug)]
pub struct Program {
    /// File stem, for messages.
    pub name: &'static str,
    /// Function in both texts.
    pub entry: &'static str,
    /// Threads of a workgroup; both texts see it as `THREADS`.
    pub threads: u32,
    /// Bytes of shared memory that a workgroup has on CUDA beside what the text declares.
    pub shared: u32,
    pub constants: &'static [(&'static str, u32)],
    pub cuda: &'static str,
    pub wgsl: &'static str,
}

/// `len` numbers in one allocation on a device, and everything queued against it, in order.
///
/// What goes wrong in a queued launch is kept, and returned by the next [`read`](Self::read) or
/// [`finish`](Self::finish); nothing queued after it matters then.
pub struct Arena {
    backend: Backend,
    len: usize,
}

enum Backend {
    Host(host::HostArena),
    #[cfg(feature = "cuda")]
    Cuda(Box<cuda::CudaArena>),
    #[cfg(feature = "wgpu")]
    Wgpu(Box<wgpu::WgpuArena>),
}

impl Program {
    /// What a wgpu adapter compiles: the constants, the prelude and the kernel.
    pub fn wgsl_text(&self) -> String {
        let threads = [("THREADS", self.threads)];
        let constants = self.constants.iter().chain(&threads);
        let constants: String =
            constants.map(|(name, value)| format!("const {name}: u32 = {value}u;\n")).collect();
        [&constants, include_str!("prelude.wgsl"), self.wgsl].concat()
    }
}

impl Arena {
    /// An arena whose numbers are not yet defined.
    ///
    /// Errors: the figure and what one allocation may hold, where `len` is more.
    pub fn new(device: &Device, len: usize) -> Result<Self, DeviceError> {
        Self::of(device, len, None)
    }

    /// The same; where arenas compete for a card, work of a lower rank goes first.
    pub fn ranked(device: &Device, len: usize, rank: usize) -> Result<Self, DeviceError> {
        Self::of(device, len, Some(rank))
    }

    fn of(device: &Device, len: usize, rank: Option<usize>) -> Result<Self, DeviceError> {
        #[cfg(not(feature = "cuda"))]
        let _ = rank;
        let backend = match device {
            Device::Host => Backend::Host(host::HostArena::new(len)?),
            #[cfg(feature = "cuda")]
            Device::Cuda(cuda) => Backend::Cuda(Box::new(cuda::CudaArena::new(cuda, len, rank)?)),
            #[cfg(feature = "wgpu")]
            Device::Wgpu(wgpu) => Backend::Wgpu(Box::new(wgpu::WgpuArena::new(wgpu, len)?)),
        };
        Ok(Self { backend, len })
    }

    /// The most numbers that one arena can hold on this device now.
    pub fn largest(device: &Device) -> Result<usize, DeviceError> {
        // Arenas are addressed by 32 bits.
        let most = u32::MAX as usize;
        match device {
            Device::Host => Ok(host::room().min(most)),
            #[cfg(feature = "cuda")]
            Device::Cuda(cuda) => Ok(cuda::room(cuda)?.min(most)),
            #[cfg(feature = "wgpu")]
            Device::Wgpu(wgpu) => Ok(wgpu::largest(wgpu).min(most)),
        }
    }

    /// The numbers that several arenas can hold together on this device now; on an adapter that does not tell, as many
    /// as one.
    pub fn room(device: &Device) -> Result<usize, DeviceError> {
        match device {
            Device::Host => Ok(host::room()),
            #[cfg(feature = "cuda")]
            Device::Cuda(cuda) => cuda::room(cuda),
            #[cfg(feature = "wgpu")]
            Device::Wgpu(_) => Self::largest(device),
        }
    }

    /// Numbers in the arena.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies numbers to `at`, behind everything queued so far.
    ///
    /// # Panics
    /// When they reach past the end.
    pub fn write(&mut self, at: usize, values: &[f32]) {
        assert!(at + values.len() <= self.len, "{} numbers at {at} of {}", values.len(), self.len);
        match &mut self.backend {
            Backend::Host(host) => host.write(at, values),
            #[cfg(feature = "cuda")]
            Backend::Cuda(cuda) => cuda.write(at, values),
            #[cfg(feature = "wgpu")]
            Backend::Wgpu(wgpu) => wgpu.write(at, values),
        }
    }

    /// Waits for everything queued, and copies `len` numbers from `at`.
    ///
    /// # Panics
    /// When they reach past the end.
    pub fn read(&mut self, at: usize, len: usize) -> Result<Vec<f32>, DeviceError> {
        assert!(at + len <= self.len, "{len} numbers at {at} of {}", self.len);
        match &mut self.backend {
            Backend::Host(host) => Ok(host.read(at, len)),
            #[cfg(feature = "cuda")]
            Backend::Cuda(cuda) => cuda.read(at, len),
            #[cfg(feature = "wgpu")]
            Backend::Wgpu(wgpu) => wgpu.read(at, len),
        }
    }

    /// Waits for everything queued.
    pub fn finish(&mut self) -> Result<(), DeviceError> {
        match &mut self.backend {
            Backend::Host(_) => Ok(()),
            #[cfg(feature = "cuda")]
            Backend::Cuda(cuda) => cuda.finish(),
            #[cfg(feature = "wgpu")]
            Backend::Wgpu(wgpu) => wgpu.finish(),
        }
    }

    /// Queues one launch over all items of a table; nothing for an empty one.
    ///
    /// # Panics
    /// On the host, where ops have no programs.
    pub fn queue(&mut self, program: &'static Program, table: Table) {
        if table.groups() == 0 {
            return;
        }
        match &mut self.backend {
            Backend::Host(_) => {
                unreachable!("{} is a program, the host runs {}.rs", program.name, program.name)
            }
            #[cfg(feature = "cuda")]
            Backend::Cuda(cuda) => cuda.queue(program, &table),
            #[cfg(feature = "wgpu")]
            Backend::Wgpu(wgpu) => wgpu.queue(program, &table),
        }
    }

    /// Does `queue` `times` times; a device records the launches once and replays them, so they must not depend on
    /// anything read in between.
    pub fn repeat(&mut self, times: usize, queue: impl Fn(&mut Arena)) {
        match &mut self.backend {
            Backend::Host(_) => (0..times).for_each(|_| queue(self)),
            #[cfg(feature = "cuda")]
            Backend::Cuda(_) => cuda::repeat(self, times, queue),
            #[cfg(feature = "wgpu")]
            Backend::Wgpu(wgpu) => {
                let start = wgpu.begin_repeat();
                queue(self);
                if let Backend::Wgpu(wgpu) = &mut self.backend {
                    wgpu.end_repeat(start, times);
                }
            }
        }
    }

    /// The memory itself, on the host.
    pub fn memory(&mut self) -> Option<Memory> {
        match &mut self.backend {
            Backend::Host(host) => Some(host.memory()),
            #[cfg(feature = "cuda")]
            Backend::Cuda(_) => None,
            #[cfg(feature = "wgpu")]
            Backend::Wgpu(_) => None,
        }
    }

    /// Turns that the loops of one thread of a launch may take in all. No card counts them, but Mesa's software
    /// adapter ends loops after that many.
    pub fn turns(&self) -> usize {
        match &self.backend {
            #[cfg(feature = "wgpu")]
            Backend::Wgpu(wgpu) => wgpu.turns(),
            _ => usize::MAX,
        }
    }

    /// The arena for CUDA's libraries, on a card.
    #[cfg(feature = "cuda")]
    pub fn card(&mut self) -> Option<Result<Card<'_>, DeviceError>> {
        match &mut self.backend {
            Backend::Cuda(cuda) => Some(cuda.card()),
            _ => None,
        }
    }

    /// How long a card had work queued for this arena, up to the last time it was waited for: from the first launch or copy
    /// after it was found idle to its end. No time where nothing counts it.
    pub fn busy(&self) -> Duration {
        match &self.backend {
            #[cfg(feature = "cuda")]
            Backend::Cuda(cuda) => cuda.busy(),
            _ => Duration::ZERO,
        }
    }

    /// What was moved and launched for this arena.
    pub fn telemetry(&self) -> Telemetry {
        match &self.backend {
            Backend::Host(_) => Telemetry::default(),
            #[cfg(feature = "cuda")]
            Backend::Cuda(cuda) => cuda.telemetry(),
            #[cfg(feature = "wgpu")]
            Backend::Wgpu(wgpu) => wgpu.telemetry(),
        }
    }
}
