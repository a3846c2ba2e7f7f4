//! Keeps a command, its output and the machine under results/.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use crate::{Result, read, write};

/// Runs `command` and writes, into a new folder, `results/DATE-topic/{command.txt,machine.txt,output.txt}`; the seconds
/// it took are appended to the output. Figures are for a person to pick: figures.csv is written by hand.
pub fn run(root: &Path, topic: &str, command: &[&str]) -> Result<()> {
    let date = output_of("date", &["+%Y-%m-%d"])?;
    let folder = root.join(format!("results/{date}-{topic}"));
    std::fs::create_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    write(&folder.join("command.txt"), &format!("{}\n", command.join(" ")))?;
    write(&folder.join("machine.txt"), &machine()?)?;
    let began = Instant::now();
    let output = Command::new(command[0]).args(&command[1..]).output();
    let output = output.map_err(|error| format!("{}: {error}", command[0]))?;
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text += &String::from_utf8_lossy(&output.stderr);
    text += &format!("[{:.1} s; {}]\n", began.elapsed().as_secs_f64(), output.status);
    write(&folder.join("output.txt"), &text)?;
    print!("{text}");
    println!("kept in {}", folder.display());
    if output.status.success() { Ok(()) } else { Err(format!("{} failed: {}", command[0], output.status)) }
}

fn machine() -> Result<String> {
    let cpu = read(Path::new("/proc/cpuinfo"))?;
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
        .map(|(_, name)| name.trim());
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let memory = read(Path::new("/proc/meminfo"))?.lines().next().unwrap_or_default().to_owned();
    let rustc = output_of("rustc", &["--version"])?;
    Ok(format!(
        "{}\n{cores} cores\n{memory}\n{rustc}\nrelease profile\n",
        model.unwrap_or("unknown processor")
    ))
}

fn output_of(program: &str, args: &[&str]) -> Result<String> {
    let output = Command::new(program).args(args).output().map_err(|error| format!("{program}: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
