use std::time::Duration;

use super::ring::Ring;
use super::{Arena, Backend, Operand, Precision, Product, Program, Table, View};
use crate::device::cuda::{
    Args, Blas, Buffer, Cuda, EigenSolver, Event, Graph, Grid, Kernel, Matrix, Op, Pinned, Solver, Source,
    Stream,
};
use crate::device::{DeviceError, Telemetry};

/// Words of a chunk of the ring through which tables and short writes go: 4 MiB.
const RING: usize = 1 << 20;

/// Launches whose tables travel in one copy. The device starts on them once the last is queued.
const BATCH: usize = 16;

/// Numbers of a copy to the host through pinned memory: 4 MiB.
const STAGE: usize = 1 << 20;

/// Longest write, in numbers, that goes through the ring; longer ones are copied where they lie, and waited for.
const SHORT: usize = 1 << 16;

/// Nodes of a graph from which replaying it costs less than what it does.
const NODES: usize = 64;

/// Multiprocessors that are left to long kernels of other arenas: those of column searches hold one for each tensor.
const LONG_KERNELS: u32 = 8;

/// Graphs that are kept for replays still in flight.
const GRAPHS: usize = 64;

/// The share of the free memory that arenas may take: libraries and side streams need some too.
const SHARE: f64 = 0.9;

/// The constant that gives a program other threads on CUDA, where a workgroup may have 1024.
const OWN_THREADS: &str = "CUDA_THREADS";

impl Program {
    /// What the compiler of CUDA reads.
    pub fn source(&self) -> Source {
        let threads = ("THREADS", i64::from(self.cuda_threads()));
        let constants = self.constants.iter().map(|(name, value)| (*name, i64::from(*value)));
        Source {
            name: self.name,
            prelude: include_str!("prelude.cu"),
            text: self.cuda,
            constants: constants.chain([threads]).collect(),
        }
    }

    fn cuda_threads(&self) -> u32 {
        let own = self.constants.iter().find(|(name, _)| *name == OWN_THREADS);
        own.map_or(self.threads, |(_, threads)| *threads)
    }
}

/// The arena of an NVIDIA card: one buffer, one stream.
pub(super) struct CudaArena {
    numbers: Buffer<f32>,
    kernels: Vec<(&'static Program, Kernel)>,
    /// Made at the first product.
    blas: Option<Blas>,
    ring: Ring,
    /// Launches whose tables are in the ring, and products, not yet queued.
    pending: Vec<Pending>,
    /// Whether launches are collected for a graph.
    recording: bool,
    graphs: Vec<Graph>,
    stage: Pinned<f32>,
    error: Option<DeviceError>,
    /// Whether other arenas have long kernels under way.
    competes: bool,
    libraries: Option<(Solver, EigenSolver)>,
    spare: Option<Buffer<f64>>,
    busy: Busy,
    /// Last, so that everything above is still there while its destructor waits.
    stream: Stream,
}

/// An arena as CUDA's libraries see it.
pub struct Card<'a> {
    pub stream: &'a Stream,
    pub numbers: &'a Buffer<f32>,
    pub blas: &'a Blas,
    pub solver: &'a Solver,
    pub eigen: &'a mut EigenSolver,
    /// Memory that users of libraries work in; whoever needs more replaces it.
    pub spare: &'a mut Option<Buffer<f64>>,
}

#[derive(Clone, Copy)]
enum Pending {
    Launch(Launch),
    Product(Product),
}

#[derive(Clone, Copy)]
struct Launch {
    kernel: usize,
    groups: usize,
    /// First word of the table in the ring.
    table: usize,
}

impl CudaArena {
    /// With a rank, one of several whose work competes.
    pub fn new(cuda: &Cuda, len: usize, rank: Option<usize>) -> Result<Self, DeviceError> {
        Ok(Self {
            numbers: Buffer::new(cuda, len)?,
            kernels: Vec::new(),
            blas: None,
            ring: Ring::new(cuda, RING)?,
            pending: Vec::new(),
            recording: false,
            graphs: Vec::new(),
            stage: Pinned::new(cuda, STAGE)?,
            error: None,
            libraries: None,
            spare: None,
            busy: Busy::new(cuda)?,
            stream: rank.map_or_else(|| Stream::new(cuda), |rank| Stream::ranked(cuda, rank))?,
            competes: rank.is_some(),
        })
    }

    pub fn write(&mut self, at: usize, values: &[f32]) {
        self.attempt(|arena| {
            arena.flush()?;
            arena.busy.begin(&arena.stream)?;
            if values.len() > SHORT {
                // SAFETY: memory that is not pinned was read when the copy returns.
                return unsafe { arena.numbers.queue_upload_at(&arena.stream, at, values) };
            }
            arena.make_room(values.len())?;
            arena.ring.divert(&arena.stream, values, &arena.numbers, at)
        });
    }

    pub fn read(&mut self, at: usize, len: usize) -> Result<Vec<f32>, DeviceError> {
        let mut values = Vec::with_capacity(len);
        self.attempt(|arena| {
            arena.flush()?;
            arena.busy.end(&arena.stream)?;
            while values.len() < len {
                let part = (len - values.len()).min(STAGE);
                let stage = &mut arena.stage[..part];
                arena.numbers.download_at(&arena.stream, at + values.len(), stage)?;
                values.extend_from_slice(stage);
            }
            arena.graphs.clear();
            Ok(())
        });
        self.error.clone().map_or(Ok(values), Err)
    }

    pub fn finish(&mut self) -> Result<(), DeviceError> {
        self.attempt(|arena| {
            arena.flush()?;
            arena.busy.end(&arena.stream)?;
            arena.stream.wait()?;
            arena.graphs.clear();
            Ok(())
        });
        self.error.clone().map_or(Ok(()), Err)
    }

    pub fn queue(&mut self, program: &'static Program, table: &Table) {
        self.attempt(|arena| {
            let kernel = arena.kernel(program)?;
            arena.make_room(table.words().len())?;
            let place = arena.ring.place(table.words());
            let launch = Launch { kernel, groups: table.groups() as usize, table: place };
            arena.add(Pending::Launch(launch))
        });
    }

    pub fn product(&mut self, product: &Product) {
        self.attempt(|arena| {
            arena.open_blas()?;
            arena.add(Pending::Product(*product))
        });
    }

    fn open_blas(&mut self) -> Result<(), DeviceError> {
        if self.blas.is_none() {
            let blas = Blas::new(&self.stream)?;
            if self.competes {
                blas.leave(LONG_KERNELS)?;
            }
            self.blas = Some(blas);
        }
        Ok(())
    }

    fn add(&mut self, work: Pending) -> Result<(), DeviceError> {
        self.pending.push(work);
        if self.pending.len() >= BATCH && !self.recording { self.flush() } else { Ok(()) }
    }

    /// Collects launches from here on, for [`replay`](Self::replay).
    pub fn record(&mut self) {
        self.attempt(|arena| {
            arena.flush()?;
            arena.recording = true;
            Ok(())
        });
    }

    /// Queues what was collected `times` times, and returns how often the caller has yet to do so itself: where the
    /// collected tables did not fit into the ring together, they were queued once.
    pub fn replay(&mut self, times: usize) -> usize {
        if !std::mem::take(&mut self.recording) {
            return times - 1;
        }
        self.attempt(|arena| {
            arena.ring.send(&arena.stream)?;
            let launches = std::mem::take(&mut arena.pending);
            if launches.is_empty() {
                return Ok(());
            }
            let copies = NODES.div_ceil(launches.len()).min(times);
            arena.busy.begin(&arena.stream)?;
            if times / copies > 1 {
                let graph =
                    arena.stream.capture(|| (0..copies).try_for_each(|_| arena.queue_all(&launches)))?;
                (0..times / copies).try_for_each(|_| graph.replay(&arena.stream))?;
                arena.keep(graph)?;
            } else {
                (0..copies * (times / copies)).try_for_each(|_| arena.launch(&launches))?;
            }
            (0..times % copies).try_for_each(|_| arena.launch(&launches))
        });
        0
    }

    /// For libraries: what they queue comes behind everything queued so far.
    pub fn card(&mut self) -> Result<Card<'_>, DeviceError> {
        self.attempt(Self::flush);
        if let Some(error) = &self.error {
            return Err(error.clone());
        }
        self.open_blas()?;
        if self.libraries.is_none() {
            self.libraries = Some((Solver::new(&self.stream)?, EigenSolver::new(self.stream.cuda())));
        }
        let blas = self.blas.as_ref().expect("made above");
        let (solver, eigen) = self.libraries.as_mut().expect("made above");
        let (stream, numbers, spare) = (&self.stream, &self.numbers, &mut self.spare);
        Ok(Card { stream, numbers, blas, solver, eigen, spare })
    }

    pub fn telemetry(&self) -> Telemetry {
        self.stream.telemetry()
    }

    pub fn busy(&self) -> Duration {
        self.busy.total
    }

    /// Does nothing after an error, and keeps the first.
    fn attempt(&mut self, work: impl FnOnce(&mut Self) -> Result<(), DeviceError>) {
        if self.error.is_none() {
            self.error = work(self).err();
        }
    }

    /// Index of a program among those loaded; compiles it at its first use.
    fn kernel(&mut self, program: &'static Program) -> Result<usize, DeviceError> {
        if let Some(known) = self.kernels.iter().position(|(known, _)| std::ptr::eq(*known, program)) {
            return Ok(known);
        }
        let shared = program.shared as usize;
        let kernel = Kernel::new(self.stream.cuda(), &program.source(), program.entry, shared)?;
        self.kernels.push((program, kernel));
        Ok(self.kernels.len() - 1)
    }

    /// Makes room for that many words in the current chunk of the ring, and ends a recording that does not fit.
    fn make_room(&mut self, words: usize) -> Result<(), DeviceError> {
        if self.ring.has_room(words) {
            return Ok(());
        }
        self.flush()?;
        if words > self.ring.len() {
            self.stream.wait()?;
            self.ring = Ring::new(self.stream.cuda(), words.next_power_of_two())?;
        }
        self.ring.turn(&self.stream)
    }

    /// Queues everything that is pending: the tables in one copy, then the launches.
    fn flush(&mut self) -> Result<(), DeviceError> {
        self.recording = false;
        self.ring.send(&self.stream)?;
        let launches = std::mem::take(&mut self.pending);
        self.launch(&launches)?;
        self.pending = launches;
        self.pending.clear();
        Ok(())
    }

    fn launch(&mut self, pending: &[Pending]) -> Result<(), DeviceError> {
        if !pending.is_empty() {
            self.busy.begin(&self.stream)?;
        }
        self.queue_all(pending)
    }

    fn queue_all(&self, pending: &[Pending]) -> Result<(), DeviceError> {
        pending.iter().try_for_each(|work| match work {
            Pending::Launch(launch) => self.launch_program(*launch),
            Pending::Product(product) => self.multiply(product),
        })
    }

    fn launch_program(&self, Launch { kernel, groups, table }: Launch) -> Result<(), DeviceError> {
        let (program, kernel) = &self.kernels[kernel];
        let grid = Grid { blocks: (groups, 1), threads: program.cuda_threads() as usize };
        let mut args = Args::new().pointer(self.numbers.address()).pointer(self.ring.address(table));
        // SAFETY: a program takes the arena and a table, and waits for the launch before it (`find_item`); both
        // outlive its run, since the ring waits before it uses a chunk again.
        unsafe { kernel.launch_chained(&self.stream, grid, &mut args) }
    }

    /// A row-major product is a column-major one with everything transposed: Cᵀ = BᵀAᵀ.
    fn multiply(&self, product: &Product) -> Result<(), DeviceError> {
        let Some(blas) = &self.blas else { return Ok(()) };
        let operand = |operand| match operand {
            Operand::Plain(view) => (Op::None, view, view.cols),
            Operand::Transposed(view) => (Op::Transposed, view, view.rows),
        };
        let ((op_a, a, depth), (op_b, b, _)) = (operand(product.a), operand(product.b));
        let matrix = |view: View| -> Matrix { (self.numbers.at(view.at), view.stride) };
        let shape = (product.c.cols, product.c.rows, depth);
        let scalars = (product.alpha, product.beta);
        // SAFETY: views lie inside the arena, and their shapes were checked by the op.
        unsafe {
            let (a, b, c) = (matrix(a), matrix(b), matrix(product.c));
            match product.precision {
                Precision::F32 => blas.gemm_f32((op_b, op_a), shape, scalars, b, a, c),
                Precision::Tf32 => blas.gemm_tf32((op_b, op_a), shape, scalars, b, a, c),
            }
        }
    }

    fn keep(&mut self, graph: Graph) -> Result<(), DeviceError> {
        if self.graphs.len() >= GRAPHS {
            self.stream.wait()?;
            self.graphs.clear();
        }
        self.graphs.push(graph);
        Ok(())
    }
}

/// How long the stream had work: from the first thing queued after it was found idle to when it is waited for.
struct Busy {
    first: Event,
    last: Event,
    since: bool,
    total: Duration,
}

impl Busy {
    fn new(cuda: &Cuda) -> Result<Self, DeviceError> {
        Ok(Self { first: Event::new(cuda)?, last: Event::new(cuda)?, since: false, total: Duration::ZERO })
    }

    fn begin(&mut self, stream: &Stream) -> Result<(), DeviceError> {
        if !std::mem::replace(&mut self.since, true) {
            self.first.record(stream)?;
        }
        Ok(())
    }

    /// Waits for the stream.
    fn end(&mut self, stream: &Stream) -> Result<(), DeviceError> {
        if std::mem::take(&mut self.since) {
            self.last.record(stream)?;
            let milliseconds = self.last.milliseconds_since(&self.first)?;
            self.total += Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3);
        }
        Ok(())
    }
}

impl Drop for CudaArena {
    fn drop(&mut self) {
        // Graphs and buffers go only once nothing uses them. An error has nobody left to tell.
        let _ = self.stream.wait();
    }
}

/// The numbers that arenas can hold now.
pub(super) fn room(cuda: &Cuda) -> Result<usize, DeviceError> {
    Ok((cuda.free_memory()? as f64 * SHARE / size_of::<f32>() as f64) as usize)
}

/// Queues `queue` `times` times; as a recorded graph where its tables fit into the ring together.
pub(super) fn repeat(arena: &mut Arena, times: usize, queue: impl Fn(&mut Arena)) {
    if times > 0 {
        card(arena).record();
        queue(arena);
        let rest = card(arena).replay(times);
        (0..rest).for_each(|_| queue(arena));
    }
}

fn card(arena: &mut Arena) -> &mut CudaArena {
    match &mut arena.backend {
        Backend::Cuda(cuda) => cuda,
        _ => unreachable!("an arena stays on its device"),
    }
}
