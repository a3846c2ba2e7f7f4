use std::pin::pin;
use std::task::{Context, Poll, Waker};

use crate::device::DeviceError;

use super::error;

/// Environment variable with a part of the name of the adapter to take.
pub const ADAPTER_VARIABLE: &str = "LAPIDARY_ADAPTER";

/// What the kernels are written for: threads of a workgroup, and bytes that they share.
const INVOCATIONS: u32 = 256;
const WORKGROUP_BYTES: u32 = 16 << 10;

/// Which adapters may be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adapters {
    /// Cards alone.
    Hardware,
    /// Software ones too, where there is no card.
    Any,
}

/// The first adapter in the order of [`rank`], among those of the wanted name.
pub(super) fn find(adapters: Adapters) -> Result<wgpu::Adapter, DeviceError> {
    let backends = wgpu::Backends::VULKAN | wgpu::Backends::METAL | wgpu::Backends::DX12;
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor {
        backends,
        ..wgpu::InstanceDescriptor::new_without_display_handle()
    });
    let mut found = ready(instance.enumerate_adapters(backends))?;
    let name = std::env::var(ADAPTER_VARIABLE).unwrap_or_default().to_lowercase();
    let names: Vec<String> = found.iter().map(|adapter| adapter.get_info().name).collect();
    found.retain(|adapter| {
        let about = adapter.get_info();
        let allowed = adapters == Adapters::Any || about.device_type != wgpu::DeviceType::Cpu;
        allowed && about.name.to_lowercase().contains(&name)
    });
    found.sort_by_key(|adapter| rank(&adapter.get_info()));
    found.into_iter().next().ok_or_else(|| DeviceError::NoAdapter {
        wanted: match (adapters, name.as_str()) {
            (Adapters::Any, "") => "adapter".to_owned(),
            (Adapters::Hardware, "") => "adapter that is a card".to_owned(),
            (_, name) => format!("adapter with \"{name}\" ({ADAPTER_VARIABLE}) in its name"),
        },
        found: if names.is_empty() { "none at all".to_owned() } else { names.join(", ") },
    })
}

/// Everything that the adapter can do, where that is enough for the kernels.
pub(super) fn limits(adapter: &wgpu::Adapter, name: &str) -> Result<wgpu::Limits, DeviceError> {
    let limits = adapter.limits();
    let needs = [
        ("threads of a workgroup", limits.max_compute_invocations_per_workgroup, INVOCATIONS),
        ("threads in a row of a workgroup", limits.max_compute_workgroup_size_x, INVOCATIONS),
        ("bytes of workgroup memory", limits.max_compute_workgroup_storage_size, WORKGROUP_BYTES),
        ("storage buffers of a kernel", limits.max_storage_buffers_per_shader_stage, 2),
    ];
    match needs.into_iter().find(|(_, has, needed)| has < needed) {
        None => Ok(limits),
        Some((what, has, needed)) => {
            Err(error::call("open", format!("{name} allows {has} {what}, the kernels need {needed}")))
        }
    }
}

/// The result of a future that is ready when it is made, as all of the library's are outside of a browser.
pub(super) fn ready<T>(future: impl Future<Output = T>) -> Result<T, DeviceError> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Ok(value),
        Poll::Pending => Err(error::call("wgpu", "an answer was not ready at once".to_owned())),
    }
}

/// Discrete, integrated, virtual, unknown, software.
fn rank(about: &wgpu::AdapterInfo) -> u8 {
    match about.device_type {
        wgpu::DeviceType::DiscreteGpu => 0,
        wgpu::DeviceType::IntegratedGpu => 1,
        wgpu::DeviceType::VirtualGpu => 2,
        wgpu::DeviceType::Other => 3,
        wgpu::DeviceType::Cpu => 4,
    }
}
