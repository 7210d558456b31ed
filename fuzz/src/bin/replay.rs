//! Runs chosen inputs of a target, or seeded mutations of its corpus, without libFuzzer.
//!
//! ```text
//! replay TARGET FILE...
//! replay TARGET --mutations N [--seed S]
//! ```

use quire_fuzz::{TARGETS, replay, target};
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<(), String> {
    let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    let usage = format!(
        "replay TARGET FILE... | replay TARGET --mutations N [--seed S]; targets: {}",
        names.join(", ")
    );
    let (name, rest) = arguments.split_first().ok_or(usage.clone())?;
    let target = target(name).ok_or(usage.clone())?;
    let number = |text: &String| text.parse::<u64>().map_err(|error| format!("{text}: {error}"));
    match rest {
        [flag, count] if flag == "--mutations" => report(replay::replay(target, number(count)? as usize, 1)?),
        [flag, count, second, seed] if flag == "--mutations" && second == "--seed" => {
            report(replay::replay(target, number(count)? as usize, number(seed)?)?)
        }
        [] => return Err(usage),
        files => {
            for file in files {
                let input = std::fs::read(file).map_err(|error| format!("{file}: {error}"))?;
                let took = replay::run_guarded(target, &input)?;
                println!("{file}: {} ms", took.as_millis());
            }
        }
    }
    Ok(())
}

fn report(done: replay::Replayed) {
    println!("{} kept, {} mutations, slowest {} ms", done.kept, done.mutations, done.slowest.as_millis());
}
