//! Any card through Vulkan, Metal or DX12. The loader and the driver are found when the program runs.

mod adapter;
mod error;

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use super::DeviceError;
use super::arena::Program;

pub use adapter::{ADAPTER_VARIABLE, Adapters};

use adapter::ready;
use error::Failures;

/// One adapter, opened. Clones share the queue and the pipelines that were built.
#[derive(Clone)]
pub struct Wgpu(Arc<Context>);

struct Context {
    device: wgpu::Device,
    queue: wgpu::Queue,
    about: wgpu::AdapterInfo,
    limits: wgpu::Limits,
    bindings: wgpu::BindGroupLayout,
    layout: wgpu::PipelineLayout,
    pipelines: Mutex<HashMap<*const Program, wgpu::ComputePipeline>>,
    failures: Arc<Failures>,
}

// SAFETY: the pointers are names of programs, nobody looks behind them.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Wgpu {
    /// Opens the fastest adapter, or the one whose name contains [`ADAPTER_VARIABLE`]: discrete cards first, then
    /// integrated, virtual and, where `adapters` allows it, software ones. Takes all that its limits allow.
    ///
    /// Errors: no loader or driver, no such adapter, one that cannot run the kernels.
    pub fn open(adapters: Adapters) -> Result<Self, DeviceError> {
        let adapter = adapter::find(adapters)?;
        let about = adapter.get_info();
        let limits = adapter::limits(&adapter, &about.name)?;
        let request = adapter.request_device(&wgpu::DeviceDescriptor {
            label: Some("lapidary"),
            required_limits: limits.clone(),
            memory_hints: wgpu::MemoryHints::MemoryUsage,
            ..Default::default()
        });
        let (device, queue) = ready(request).and_then(|opened| {
            opened.map_err(|e| DeviceError::Call {
                call: "request_device",
                code: about.name.clone(),
                text: e.to_string(),
            })
        })?;
        let failures = Failures::watch(&device);
        let bindings = device.create_bind_group_layout(&layout_of_bindings());
        let layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: None,
            bind_group_layouts: &[Some(&bindings)],
            immediate_size: 0,
        });
        let pipelines = Mutex::default();
        let context = Context { device, queue, about, limits, bindings, layout, pipelines, failures };
        Ok(Self(Arc::new(context)))
    }

    pub fn name(&self) -> &str {
        &self.0.about.name
    }

    /// The interface and the driver that reach the adapter.
    pub fn driver(&self) -> String {
        format!("{}, {} {}", self.0.about.backend, self.0.about.driver, self.0.about.driver_info)
    }

    /// Whether it is a program on the host's processor, not a card.
    pub fn is_software(&self) -> bool {
        self.0.about.device_type == wgpu::DeviceType::Cpu
    }

    /// Bytes that one buffer may hold and a kernel may see.
    pub fn largest_buffer(&self) -> u64 {
        self.0.limits.max_buffer_size.min(self.0.limits.max_storage_buffer_binding_size)
    }

    pub(super) fn device(&self) -> &wgpu::Device {
        &self.0.device
    }

    pub(super) fn queue(&self) -> &wgpu::Queue {
        &self.0.queue
    }

    pub(super) fn limits(&self) -> &wgpu::Limits {
        &self.0.limits
    }

    /// The layout that all kernels share: the arena, and a table at a dynamic offset.
    pub(super) fn bindings(&self) -> &wgpu::BindGroupLayout {
        &self.0.bindings
    }

    /// The pipeline of a program, built once.
    pub(super) fn pipeline(&self, program: &'static Program) -> Result<wgpu::ComputePipeline, DeviceError> {
        let mut pipelines = self.0.pipelines.lock().unwrap_or_else(|e| e.into_inner());
        let key = std::ptr::from_ref(program);
        if let Some(pipeline) = pipelines.get(&key) {
            return Ok(pipeline.clone());
        }
        let built = self.scoped("create_compute_pipeline", || self.build(program));
        let pipeline = built.map_err(|error| match error {
            DeviceError::Call { text, .. } => {
                DeviceError::Shader { kernel: program.entry, adapter: self.name().to_owned(), log: text }
            }
            other => other,
        })?;
        pipelines.insert(key, pipeline.clone());
        Ok(pipeline)
    }

    fn build(&self, program: &Program) -> wgpu::ComputePipeline {
        let descriptor = wgpu::ShaderModuleDescriptor {
            label: Some(program.name),
            source: wgpu::ShaderSource::Wgsl(program.wgsl_text().into()),
        };
        // SAFETY: the kernels are this crate's own: their loops end, they divide by words that are not zero, and views
        // are checked against the arena before their words reach a table.
        let module = unsafe {
            self.device().create_shader_module_trusted(descriptor, wgpu::ShaderRuntimeChecks::unchecked())
        };
        self.device().create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(program.entry),
            layout: Some(&self.0.layout),
            module: &module,
            entry_point: Some(program.entry),
            compilation_options: wgpu::PipelineCompilationOptions {
                zero_initialize_workgroup_memory: false,
                ..Default::default()
            },
            cache: None,
        })
    }

    /// Runs calls of this thread on the device and returns what they were refused for.
    pub(super) fn scoped<T>(&self, call: &'static str, calls: impl FnOnce() -> T) -> Result<T, DeviceError> {
        use wgpu::ErrorFilter::{Internal, OutOfMemory, Validation};
        self.0.failures.check()?;
        let scopes = [Validation, Internal, OutOfMemory].map(|filter| self.device().push_error_scope(filter));
        let result = calls();
        let mut refused = None;
        for scope in scopes.into_iter().rev() {
            refused = ready(scope.pop())?.or(refused);
        }
        self.0.failures.check()?;
        refused.map_or(Ok(result), |error| Err(error::typed(call, &error)))
    }

    /// Waits until a submission is done. Errors: the device was lost.
    pub(super) fn wait(&self, submission: wgpu::SubmissionIndex) -> Result<(), DeviceError> {
        self.0.failures.check()?;
        let wait = wgpu::PollType::Wait { submission_index: Some(submission), timeout: None };
        // A device that is lost while it is waited for panics inside the library.
        let waited = catch_unwind(AssertUnwindSafe(|| self.device().poll(wait)));
        self.0.failures.check()?;
        match waited {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(error::call("poll", error.to_string())),
            Err(_) => Err(error::lost("poll", "the wait for the device ended in a panic".to_owned())),
        }
    }
}

impl std::fmt::Debug for Wgpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Wgpu({}, {})", self.name(), self.0.about.backend)
    }
}

fn layout_of_bindings() -> wgpu::BindGroupLayoutDescriptor<'static> {
    const fn storage(binding: u32, read_only: bool, has_dynamic_offset: bool) -> wgpu::BindGroupLayoutEntry {
        wgpu::BindGroupLayoutEntry {
            binding,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer {
                ty: wgpu::BufferBindingType::Storage { read_only },
                has_dynamic_offset,
                min_binding_size: None,
            },
            count: None,
        }
    }
    const ENTRIES: [wgpu::BindGroupLayoutEntry; 2] = [storage(0, false, false), storage(1, true, true)];
    wgpu::BindGroupLayoutDescriptor { label: Some("arena"), entries: &ENTRIES }
}
