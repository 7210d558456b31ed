//! One run of `quire bench`: the list of engines gone through, once or several times, and what came of it
//! shown.
//!
//! Variants of one engine in one list make the list be gone through four times, every second time backwards,
//! so that a drift of the machine falls on all alike; a given time is then divided among the rounds.

use crate::arguments::{Common, Track, Workload};
use crate::drive::Surroundings;
use crate::engine::{self, Kind, Spec, Workshop};
use crate::image::{Image, NOT_ZEROS};
use crate::interrupt::Interrupt;
use crate::outcome::{Outcome, Trouble, os};
use crate::progress::Progress;
use crate::report::{Report, Row, Status, machine, plot, table};
use crate::sample::{Figures, Sample};
use crate::size;
use crate::warm;
use crate::workload::{self, Context, Work};
use serde_json::json;
use std::path::{Path, PathBuf};

/// Rounds where variants alternate and nobody said how many.
const ALTERNATIONS: u32 = 4;

/// What a run needs from the program that it is part of.
pub struct Host {
    /// The program `quire`, for engines that are served by it.
    pub program: Option<PathBuf>,
    /// Ctrl-C.
    pub interrupt: Interrupt,
    /// What is shown meanwhile.
    pub progress: Progress,
}

/// Runs a workload and shows what came of it. Fails after that if an engine failed.
pub fn bench(workload: &Workload, host: &Host) -> Outcome {
    let report = measure(workload, host)?;
    let common = workload.common();
    print!("{}", table::render(&report));
    if let Some(path) = &common.json {
        let mut text = serde_json::to_string_pretty(&report.json()).unwrap_or_default();
        text.push('\n');
        std::fs::write(path, text).map_err(os(format!("writing {}", path.display())))?;
    }
    if let Some(path) = &common.plot {
        plot::draw(&report, path)?;
    }
    match report.has_failed() {
        true => Err(crate::outcome::failed("an engine failed")),
        false => Ok(()),
    }
}

/// What became of one engine so far.
struct Lane {
    spec: Spec,
    sample: Sample,
    rounds: Vec<Figures>,
    ended: Option<Status>,
}

/// Runs a workload.
pub fn measure(workload: &Workload, host: &Host) -> Outcome<Report> {
    let common = workload.common();
    let work = workload::make(workload)?;
    let specs = specs(workload)?;
    check_files(common)?;
    let parent = match &common.dir {
        Some(dir) if dir.is_dir() => dir.clone(),
        Some(dir) => return Err(Trouble::Usage(format!("--dir {}: not a directory", dir.display()))),
        None => std::env::current_dir().map_err(os("finding the current directory"))?,
    };
    let rounds = common.rounds.unwrap_or(if has_variants(&specs) { ALTERNATIONS } else { 1 });
    let surroundings = Surroundings { interrupt: &host.interrupt, progress: &host.progress };
    let machine = machine::describe(&parent);
    if let Some(why) = machine::slow_build() {
        eprintln!(
            "quire bench: the figures of quire and mount are not the product's: this program was {why}"
        );
    }
    // Held in this order, so that the image and the directory outlive what uses them.
    let directory = tempfile::Builder::new()
        .prefix("quire-bench-")
        .tempdir_in(&parent)
        .map_err(os(format!("making a directory in {}", parent.display())))?;
    let device_bytes = work.device_bytes(common.seconds.unwrap_or(10.0));
    let mut lanes: Vec<Lane> = specs
        .into_iter()
        .map(|spec| {
            let ended = work.refuses(&spec.kind).map(Status::Skipped);
            Lane { spec, sample: Sample::default(), rounds: Vec::new(), ended }
        })
        .collect();
    let image = if lanes.iter().any(|lane| lane.ended.is_none() && lane.spec.needs_image()) {
        check_room(&parent, device_bytes)?;
        host.progress.engine("image");
        Some(Image::write_through(directory.path().join("image"), device_bytes, &surroundings)?)
    } else {
        None
    };
    let workshop = Workshop {
        directory: directory.path(),
        image: image.as_ref(),
        program: host.program.as_deref(),
        file_bytes: work.file_bytes(),
        files: work.files(),
        device_bytes,
        surroundings: &surroundings,
    };
    let context = Context {
        seconds: common.seconds.map(|seconds| seconds / f64::from(rounds)),
        seed: common.seed,
        surroundings: &surroundings,
    };
    // Without a number of operations the default time is what is divided.
    let context = Context { seconds: context.seconds.or(default_seconds(workload, rounds)), ..context };
    for round in 0..rounds {
        let count = lanes.len();
        for n in 0..count {
            let lane = &mut lanes[if round % 2 == 0 { n } else { count - 1 - n }];
            if lane.ended.is_none() {
                if let Some(image) = image.as_ref().filter(|_| lane.spec.needs_image()) {
                    image.fill_holes(NOT_ZEROS, &surroundings)?;
                }
                // The figures of a debug build are of no use: they need no warm memory.
                if machine::slow_build().is_none() {
                    warm::warm(device_bytes, &surroundings)?;
                }
                run_once(lane, &*work, &workshop, &context)?;
            }
        }
    }
    host.progress.finish();
    let mut params = work.params();
    params.insert("seconds".into(), json!(common.seconds));
    params.insert("rounds".into(), json!(rounds));
    params.insert("seed".into(), json!(common.seed));
    params.insert("image_bytes".into(), json!(image.as_ref().map(Image::bytes)));
    let rows = lanes.into_iter().map(|lane| row(lane, &*work)).collect();
    Ok(Report { workload: work.name().into(), params, machine, rows, headline: work.headline() })
}

/// The time of a round for workloads that are bounded by nothing else, where rounds share the default.
fn default_seconds(workload: &Workload, rounds: u32) -> Option<f64> {
    let timed = matches!(
        workload,
        Workload::Mixed { .. }
            | Workload::Dirty { .. }
            | Workload::Append { .. }
            | Workload::Tail { .. }
            | Workload::Snapshot { .. }
            | Workload::Untorn { .. }
            | Workload::Group { .. }
    );
    timed.then_some(10.0 / f64::from(rounds))
}

fn run_once(lane: &mut Lane, work: &dyn Work, workshop: &Workshop<'_>, context: &Context<'_>) -> Outcome {
    workshop.surroundings.progress.engine(&lane.spec.name);
    let outcome = engine::set_up(&lane.spec, workshop).and_then(|target| {
        let sample = work.run(&*target, context)?;
        context.surroundings.progress.phase("closing");
        target.finish()?;
        Ok(sample)
    });
    match outcome {
        Ok(sample) => {
            lane.rounds.push(work.figures(&sample));
            lane.sample.merge(&sample)?;
        }
        Err(Trouble::Skipped(why)) => lane.ended = Some(Status::Skipped(why)),
        Err(Trouble::Failed(error)) => lane.ended = Some(Status::Failed(error.to_string())),
        Err(trouble) => return Err(trouble),
    }
    Ok(())
}

fn row(lane: Lane, work: &dyn Work) -> Row {
    let engine = lane.spec.name;
    match lane.ended {
        Some(status) => Row { engine, status, figures: Figures::default(), rounds: Vec::new() },
        None => Row { engine, status: Status::Ok, figures: work.figures(&lane.sample), rounds: lane.rounds },
    }
}

/// The engines of the list, with the workload's own options for Quire put in.
fn specs(workload: &Workload) -> Outcome<Vec<Spec>> {
    let short: Vec<String> = match workload {
        Workload::Dirty { options, .. } => [
            options.folio.map(|bytes| format!("@folio={}", size::show(bytes))),
            options.track.map(|Track::Folio| "@track=folio".into()),
        ]
        .into_iter()
        .flatten()
        .collect(),
        Workload::Orphan { options, .. } => {
            options.orphans.map(|orphans| format!("@orphans={}", orphans.name())).into_iter().collect()
        }
        _ => Vec::new(),
    };
    let parse = |text: &String| -> Outcome<Spec> {
        let mut plain = Spec::parse(text.trim()).map_err(Trouble::Usage)?;
        if let Workload::Scale { options, .. } = workload {
            plain.cache = plain.cache.or(Some(options.cache));
        }
        if plain.atomic && !matches!(workload, Workload::Untorn { .. }) {
            return Err(Trouble::Usage(format!(
                "{}: the option atomic is for the workload untorn",
                plain.name
            )));
        }
        if plain.kind == Kind::Quire && !short.is_empty() {
            return Spec::parse(&format!("{}{}", plain.name, short.concat())).map_err(Trouble::Usage);
        }
        Ok(plain)
    };
    workload.common().engines.iter().map(parse).collect()
}

fn has_variants(specs: &[Spec]) -> bool {
    let families: Vec<&str> = specs.iter().map(Spec::family).collect();
    families.iter().enumerate().any(|(n, family)| families[..n].contains(family))
}

/// Mistyped paths are found before the measurement and not after it.
fn check_files(common: &Common) -> Outcome {
    for path in [&common.json, &common.plot].into_iter().flatten() {
        let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
        if path.is_dir() || directory.is_some_and(|directory| !directory.is_dir()) {
            return Err(Trouble::Usage(format!("{}: cannot be written there", path.display())));
        }
    }
    match &common.plot {
        Some(path) if path.extension().is_none_or(|extension| extension != "svg") => {
            Err(Trouble::Usage(format!("--plot {}: the name must end with .svg", path.display())))
        }
        _ => Ok(()),
    }
}

fn check_room(directory: &Path, bytes: u64) -> Outcome {
    let space = rustix::fs::statvfs(directory).map_err(|error| os("looking at free space")(error.into()))?;
    let available = space.f_bavail.saturating_mul(space.f_frsize);
    if available < bytes {
        return Err(crate::outcome::failed(format!(
            "{} has {} MiB of room; the image needs {} MiB (choose another --dir, or less of what the workload writes)",
            directory.display(),
            available >> 20,
            bytes >> 20
        )));
    }
    Ok(())
}
