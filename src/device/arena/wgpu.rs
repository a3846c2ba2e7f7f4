use std::ops::Range;

use super::{Program, Table};
use crate::device::wgpu::Wgpu;
use crate::device::{DeviceError, Telemetry};

/// Launches, and workgroups of them, after which a submission ends: a driver kills one that runs for seconds.
const LAUNCHES_A_SUBMISSION: usize = 128;
const GROUPS_A_SUBMISSION: u64 = 1 << 15;

/// Bytes that are copied to the host at once.
const STAGED: usize = 16 << 20;

/// Workgroups of one dimension of a grid.
const GRID: u32 = 65_535;

/// Turns after which Mesa's software adapter ends the loops of a thread (`LP_MAX_TGSI_LOOP_ITERATIONS`).
const TURNS: usize = 65_535;

/// Bytes of tables that the first table buffer holds, and of one table.
const TABLES: u64 = 1 << 20;
const WINDOW: u64 = 1 << 16;

/// The arena of a wgpu adapter: launches are collected and go to the queue together, with all their tables.
pub(super) struct WgpuArena {
    wgpu: Wgpu,
    numbers: wgpu::Buffer,
    staging: Option<wgpu::Buffer>,
    tables: Tables,
    pending: Vec<Launch>,
    /// Tables of the pending launches, each at a multiple of the device's alignment.
    words: Vec<u32>,
    /// Launches inside of `repeat` wait for its end.
    recording: usize,
    failed: Option<DeviceError>,
    telemetry: Telemetry,
}

#[derive(Clone)]
struct Launch {
    pipeline: wgpu::ComputePipeline,
    /// Where its table starts, in bytes, and how long it is.
    table: Range<u64>,
    groups: u32,
}

/// Room for the tables of one flush; a kernel sees `window` bytes from where its table starts.
struct Tables {
    buffer: wgpu::Buffer,
    bind_group: wgpu::BindGroup,
    window: u64,
}

impl WgpuArena {
    pub fn new(wgpu: &Wgpu, len: usize) -> Result<Self, DeviceError> {
        let bytes = len as u64 * 4;
        if len > largest(wgpu) {
            return Err(DeviceError::memory("the arena", bytes, wgpu.largest_buffer()));
        }
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        // A buffer of no bytes cannot be bound.
        let created = wgpu.scoped("create_buffer", || {
            let numbers = buffer(wgpu, bytes.max(4), usage);
            let tables = Tables::new(wgpu, &numbers, TABLES, WINDOW);
            (numbers, tables)
        });
        let (numbers, tables) = created.map_err(|error| match error {
            DeviceError::Call { code, .. } if code == "out of memory" => {
                DeviceError::memory("the arena", bytes, 0)
            }
            other => other,
        })?;
        Ok(Self {
            wgpu: wgpu.clone(),
            numbers,
            staging: None,
            tables,
            pending: Vec::new(),
            words: Vec::new(),
            recording: 0,
            failed: None,
            telemetry: Telemetry::default(),
        })
    }

    pub fn write(&mut self, at: usize, values: &[f32]) {
        assert_eq!(self.recording, 0, "a repeated sequence is launches alone");
        self.flush();
        self.attempt("write_buffer", |arena| {
            for (i, chunk) in values.chunks(STAGED / 4).enumerate() {
                let start = (at * 4 + i * STAGED) as u64;
                arena.wgpu.queue().write_buffer(&arena.numbers, start, bytemuck::cast_slice(chunk));
                // Lets the library take its staging memory back.
                arena.wgpu.queue().submit([]);
            }
        });
        self.telemetry.bytes_up += size_of_val(values) as u64;
    }

    pub fn read(&mut self, at: usize, len: usize) -> Result<Vec<f32>, DeviceError> {
        assert_eq!(self.recording, 0, "a repeated sequence is launches alone");
        self.flush();
        self.failure()?;
        let mut values = Vec::with_capacity(len);
        while values.len() < len {
            let part = (len - values.len()).min(STAGED / 4);
            self.stage(at + values.len(), part, &mut values)?;
        }
        self.telemetry.bytes_down += len as u64 * 4;
        Ok(values)
    }

    pub fn finish(&mut self) -> Result<(), DeviceError> {
        self.flush();
        self.failure()?;
        let last = self.wgpu.queue().submit([]);
        self.wgpu.wait(last)
    }

    pub fn queue(&mut self, program: &'static Program, table: &Table) {
        if self.failed.is_some() {
            return;
        }
        let pipeline = match self.wgpu.pipeline(program) {
            Ok(pipeline) => pipeline,
            Err(error) => return self.failed = Some(error),
        };
        let alignment = self.wgpu.limits().min_storage_buffer_offset_alignment as usize / 4;
        self.words.resize(self.words.len().next_multiple_of(alignment), 0);
        let start = self.words.len() as u64 * 4;
        self.words.extend(table.words());
        let table_end = self.words.len() as u64 * 4;
        self.pending.push(Launch { pipeline, table: start..table_end, groups: table.groups() });
        if self.recording == 0 && (self.pending.len() >= LAUNCHES_A_SUBMISSION || table_end >= TABLES) {
            self.flush();
        }
    }

    /// Launches queued from here on belong to a sequence that [`end_repeat`](Self::end_repeat) repeats.
    pub fn begin_repeat(&mut self) -> usize {
        self.recording += 1;
        self.pending.len()
    }

    /// Has the launches from `start` on `times` times in all.
    pub fn end_repeat(&mut self, start: usize, times: usize) {
        self.recording -= 1;
        let sequence = self.pending.split_off(start);
        for _ in 0..times {
            self.pending.extend_from_slice(&sequence);
        }
        if self.recording == 0 {
            self.flush();
        }
    }

    pub fn turns(&self) -> usize {
        if self.wgpu.is_software() { TURNS } else { usize::MAX }
    }

    pub fn telemetry(&self) -> Telemetry {
        self.telemetry
    }

    /// Sends everything that was collected.
    fn flush(&mut self) {
        let (pending, words) = (std::mem::take(&mut self.pending), std::mem::take(&mut self.words));
        if !pending.is_empty() {
            self.attempt("submit", |arena| arena.send(&pending, &words));
            self.telemetry.bytes_up += words.len() as u64 * 4;
            self.telemetry.launches += pending.len() as u64;
        }
    }

    fn send(&mut self, launches: &[Launch], words: &[u32]) {
        let window = launches.iter().map(|launch| launch.table.end - launch.table.start).max().unwrap_or(0);
        let bytes = words.len() as u64 * 4;
        if window > self.tables.window || bytes + self.tables.window > self.tables.buffer.size() {
            let window = window.next_power_of_two().max(self.tables.window);
            let bytes = bytes.next_power_of_two().max(TABLES);
            self.tables = Tables::new(&self.wgpu, &self.numbers, bytes, window);
        }
        self.wgpu.queue().write_buffer(&self.tables.buffer, 0, bytemuck::cast_slice(words));
        let mut rest = launches;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(submission(rest));
            self.wgpu.queue().submit([self.encode(now)]);
            rest = later;
        }
    }

    fn encode(&self, launches: &[Launch]) -> wgpu::CommandBuffer {
        let mut encoder = self.wgpu.device().create_command_encoder(&Default::default());
        let mut pass = encoder.begin_compute_pass(&Default::default());
        for Launch { pipeline, table, groups } in launches {
            pass.set_pipeline(pipeline);
            pass.set_bind_group(0, &self.tables.bind_group, &[table.start as u32]);
            let across = (*groups).min(GRID);
            pass.dispatch_workgroups(across, groups.div_ceil(across), 1);
        }
        drop(pass);
        encoder.finish()
    }

    /// Copies `len` numbers from `at` through the staging buffer.
    fn stage(&mut self, at: usize, len: usize, values: &mut Vec<f32>) -> Result<(), DeviceError> {
        let (start, bytes) = (at as u64 * 4, len as u64 * 4);
        let wgpu = self.wgpu.clone();
        let staging = match self.staging.take().filter(|staging| staging.size() >= bytes) {
            Some(staging) => staging,
            None => wgpu.scoped("create_buffer", || {
                let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
                buffer(&wgpu, bytes.next_power_of_two(), usage)
            })?,
        };
        let submission = wgpu.scoped("copy", || {
            let mut encoder = wgpu.device().create_command_encoder(&Default::default());
            encoder.copy_buffer_to_buffer(&self.numbers, start, &staging, 0, bytes);
            let submission = wgpu.queue().submit([encoder.finish()]);
            staging.map_async(wgpu::MapMode::Read, ..bytes, |_| {});
            submission
        })?;
        wgpu.wait(submission)?;
        let mapped = staging.get_mapped_range(..bytes).map_err(|error| DeviceError::Call {
            call: "map",
            code: "refused".to_owned(),
            text: error.to_string(),
        })?;
        values.extend(mapped.chunks_exact(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]])));
        drop(mapped);
        staging.unmap();
        self.staging = Some(staging);
        Ok(())
    }

    /// Does something on the device and keeps what it was refused for; nothing after a failure.
    fn attempt(&mut self, call: &'static str, calls: impl FnOnce(&mut Self)) {
        if self.failed.is_none() {
            let wgpu = self.wgpu.clone();
            self.failed = wgpu.scoped(call, || calls(self)).err();
        }
    }

    fn failure(&self) -> Result<(), DeviceError> {
        self.failed.clone().map_or(Ok(()), Err)
    }
}

impl Tables {
    /// Room for `bytes` of tables of at most `window` bytes each.
    fn new(wgpu: &Wgpu, numbers: &wgpu::Buffer, bytes: u64, window: u64) -> Self {
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST;
        let buffer = buffer(wgpu, bytes + window, usage);
        let seen = wgpu::BufferBinding { buffer: &buffer, offset: 0, size: wgpu::BufferSize::new(window) };
        let bind_group = wgpu.device().create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some("arena"),
            layout: wgpu.bindings(),
            entries: &[
                wgpu::BindGroupEntry { binding: 0, resource: numbers.as_entire_binding() },
                wgpu::BindGroupEntry { binding: 1, resource: wgpu::BindingResource::Buffer(seen) },
            ],
        });
        Self { buffer, bind_group, window }
    }
}

/// The most numbers that a buffer may hold and a kernel may see.
pub(super) fn largest(wgpu: &Wgpu) -> usize {
    (wgpu.largest_buffer() / 4) as usize
}

/// How many of the launches go into the next submission.
fn submission(launches: &[Launch]) -> usize {
    let mut groups = 0;
    let fit = launches.iter().take(LAUNCHES_A_SUBMISSION).take_while(|launch| {
        groups += u64::from(launch.groups);
        groups <= GROUPS_A_SUBMISSION
    });
    fit.count().max(1)
}

fn buffer(wgpu: &Wgpu, size: u64, usage: wgpu::BufferUsages) -> wgpu::Buffer {
    wgpu.device().create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size,
        usage,
        mapped_at_creation: false,
    })
}
