use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use miette::{IntoDiagnostic, Result, WrapErr};
use serde_json::json;

use lapidary::arrow::{Budget, Frame, Params, Ridge, file};

use super::device::DeviceArgs;
use super::{check_free, print, print_json, wrote};

/// Solve an arrow-structured system: safetensors in, δ = (H + ridge)⁻¹b out
#[derive(clap::Args)]
pub struct Args {
    /// Slabs in f64: row_hessian (n x d x d), row_cross (n x d x p), border_hessian (p x p), row_rhs, border_rhs
    file: PathBuf,
    /// Write delta_row and delta_border here
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Added to the whole diagonal
    #[arg(long, value_name = "RHO", conflicts_with = "relative_ridge")]
    ridge: Option<f64>,
    /// Added to the diagonal as a share of it
    #[arg(long, value_name = "RHO")]
    relative_ridge: Option<f64>,
    #[command(flatten)]
    device: DeviceArgs,
    /// Bytes that the frame may take [default: what is free]
    #[arg(long, value_name = "BYTES")]
    memory: Option<u64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<ExitCode> {
    check_free(args.output.as_deref())?;
    let ridge = match (args.ridge, args.relative_ridge) {
        (Some(rho), _) => Ridge::Absolute { row: rho, border: rho },
        (_, Some(rho)) => Ridge::Relative(rho),
        _ => Ridge::None,
    };
    let backend = args.device.arrow_backend()?;
    let (system, rhs) = file::read(&args.file).into_diagnostic()?;
    let system = Arc::new(system);
    let began = Instant::now();
    let params = Params { ridge, backend, budget: args.memory.map_or(Budget::Available, Budget::Bytes) };
    let failed = || args.file.display().to_string();
    let mut frame = Frame::build(&system, &params).into_diagnostic().wrap_err_with(failed)?;
    let built = began.elapsed();
    let began = Instant::now();
    let solution = frame.solve(&rhs).into_diagnostic().wrap_err_with(failed)?;
    let solved = began.elapsed();
    let residual = system.residual(ridge, system.norm2(ridge), &solution.step, &rhs);
    let about = solution.about;
    let report = json!({
        "blocks": system.blocks(),
        "row_unknowns": system.unknowns(),
        "border": system.border(),
        "residual": residual,
        "log_det": frame.log_det(),
        "about": about,
        "telemetry": solution.telemetry,
        "build_ms": 1e3 * built.as_secs_f64(),
        "solve_ms": 1e3 * solved.as_secs_f64(),
    });
    if let Some(output) = &args.output {
        file::write(output, &system, &solution.step, report.to_string()).into_diagnostic()?;
        wrote(output);
    }
    if args.json {
        print_json(&report)?;
        return Ok(ExitCode::SUCCESS);
    }
    let lines = [
        format!(
            "system       {} row blocks, {} unknowns, border {}",
            system.blocks(),
            system.unknowns(),
            system.border()
        ),
        format!(
            "path         {}, {:?} first, {:?} coupling, {:?}, {} corrections",
            about.path, about.elimination, about.coupling, about.method, about.corrections
        ),
        format!("ridge        {ridge}"),
        format!("condition    {:.1e} (estimate)", about.condition),
        format!("residual     {residual:.1e}"),
        format!("log det      {:.12e}", frame.log_det()),
        format!(
            "time         {:.3} ms frame, {:.3} ms solve",
            1e3 * built.as_secs_f64(),
            1e3 * solved.as_secs_f64()
        ),
    ];
    print(&lines.join("\n"))?;
    Ok(ExitCode::SUCCESS)
}
