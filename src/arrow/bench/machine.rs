use crate::arrow::Backend;

/// What the figures were measured on: the processors, and the card where there is one.
pub fn machine(backend: &Backend) -> Vec<(&'static str, String)> {
    let mut parts = Vec::new();
    #[cfg(feature = "cuda")]
    if let Backend::Cuda(pool) = backend {
        let cuda = pool.cuda();
        let card =
            format!("{} (sm_{}), {} multiprocessors", cuda.name(), cuda.arch(), cuda.multiprocessors());
        parts.push(("card", card));
        let module = first_line("/proc/driver/nvidia/version").unwrap_or_default();
        parts.push(("driver", format!("CUDA {} {module}", cuda.driver()).trim_end().to_owned()));
    }
    #[cfg(not(feature = "cuda"))]
    let _ = backend;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let name = processor().unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    parts.push(("processor", format!("{name}, {threads} threads")));
    parts.push(("system", std::env::consts::OS.to_owned()));
    parts
}

fn processor() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

#[cfg(feature = "cuda")]
fn first_line(path: &str) -> Option<String> {
    Some(std::fs::read_to_string(path).ok()?.lines().next()?.to_owned())
}
