//! `lab locks`: the workload `mixed` over bare locking schemes on a flat array, without a file system around
//! them.
//!
//! It shows what the choice of a scheme costs and buys: throughput, torn reads, and how long the unluckiest
//! reader and writer waited. The driver is that of `quire bench mixed`, so the figures mean the same.
//!
//! The bytes are a [`quire_bench::array`](mod@quire_bench::array), copied by raw copies that may race.
//!
//! * [`schemes`]: one type for each scheme.

pub mod schemes;

use crate::arguments::Locks;
use quire_base::sync::Arc;
use quire_base::{Error, Result};
use quire_bench::arguments;
use quire_bench::array::Array;
use quire_bench::drive::Surroundings;
use quire_bench::interrupt::Interrupt;
use quire_bench::outcome::{Outcome, Trouble, os};
use quire_bench::progress::Progress;
use quire_bench::report::table::align;
use quire_bench::report::{Report, Row, Status, machine};
use quire_bench::sample::Figures;
use quire_bench::size;
use quire_bench::target::{Handle, How, Target};
use quire_bench::workload::{Context, Work, mixed::Mixed};
use schemes::Scheme;
use serde_json::{Value, json};

/// What a run found.
pub struct Findings {
    arguments: Locks,
    rows: Vec<Row>,
}

/// Runs every scheme, or those named.
pub fn run(arguments: &Locks, interrupt: &Interrupt, progress: &Progress) -> Outcome<Findings> {
    let mixed = Mixed::new(arguments::Mixed {
        readers: arguments.readers,
        writers: arguments.writers,
        bs: arguments.bs,
        size: arguments.size,
    })
    .map_err(Trouble::Usage)?;
    let all = schemes::ALL;
    if let Some(name) = arguments.schemes.iter().find(|name| !all.iter().any(|scheme| scheme.name == **name))
    {
        let names: Vec<&str> = all.iter().map(|scheme| scheme.name).collect();
        return Err(Trouble::Usage(format!("there is no scheme '{name}'; there are {}", names.join(", "))));
    }
    let surroundings = Surroundings { interrupt, progress };
    let context =
        Context { seconds: Some(arguments.seconds), seed: arguments.seed, surroundings: &surroundings };
    let mut rows = Vec::new();
    for entry in all {
        if !arguments.schemes.is_empty() && !arguments.schemes.iter().any(|name| name == entry.name) {
            continue;
        }
        progress.engine(entry.name);
        let array = Arc::new(Array::new(arguments.size as usize)?);
        let bench = Bench { array, scheme: (entry.make)(arguments.size as usize) };
        let sample = mixed.run(&bench, &context)?;
        let figures = mixed.figures(&sample);
        rows.push(Row { engine: entry.name.into(), status: Status::Ok, figures, rounds: Vec::new() });
    }
    progress.finish();
    Ok(Findings { arguments: arguments.clone(), rows })
}

impl Findings {
    /// The table.
    pub fn table(&self) -> String {
        let heading = [
            "scheme",
            "read MiB/s",
            "write MiB/s",
            "total",
            "torn",
            "of",
            "read p99.9 us",
            "longest read ms",
            "write p99.9 us",
            "longest write ms",
        ];
        let mut lines = vec![heading.map(str::to_owned).to_vec()];
        for row in &self.rows {
            let get = |name: &str| row.figures.get(name).unwrap_or(0.0);
            lines.push(vec![
                row.engine.clone(),
                format!("{:.0}", get("read_mib_s")),
                format!("{:.0}", get("write_mib_s")),
                format!("{:.0}", get("total_mib_s")),
                format!("{:.0}", get("torn_reads")),
                format!("{:.0}", get("checked_reads")),
                format!("{:.1}", get("read_p999_us")),
                format!("{:.1}", get("read_max_us") / 1000.0),
                format!("{:.1}", get("write_p999_us")),
                format!("{:.1}", get("write_max_us") / 1000.0),
            ]);
        }
        align(&lines)
    }

    /// As `quire bench` writes it, with schemes as engines.
    pub fn json(&self) -> Value {
        let arguments = &self.arguments;
        let report = Report {
            workload: "locks".into(),
            params: [
                ("readers", json!(arguments.readers)),
                ("writers", json!(arguments.writers)),
                ("bs", json!(size::show(arguments.bs))),
                ("size", json!(size::show(arguments.size))),
                ("seconds", json!(arguments.seconds)),
            ]
            .map(|(name, value)| (name.to_owned(), value))
            .into_iter()
            .collect(),
            machine: machine::describe(std::path::Path::new(".")),
            rows: self.rows.clone(),
            headline: "total_mib_s",
        };
        report.json()
    }

    /// The figures of a scheme.
    pub fn figures(&self, scheme: &str) -> Option<&Figures> {
        self.rows.iter().find(|row| row.engine == scheme).map(|row| &row.figures)
    }

    /// Prints the table and writes the JSON if that was asked for.
    pub fn show(&self) -> Outcome {
        print!("{}", self.table());
        if let Some(path) = &self.arguments.json {
            std::fs::write(path, format!("{:#}\n", self.json()))
                .map_err(os(format!("writing {}", path.display())))?;
        }
        Ok(())
    }
}

/// A scheme and its array, as an engine.
struct Bench {
    array: Arc<Array>,
    scheme: Arc<dyn Scheme>,
}

struct Open {
    array: Arc<Array>,
    scheme: Arc<dyn Scheme>,
}

impl Target for Bench {
    fn open(&self, _path: &str, _how: How) -> Result<Arc<dyn Handle>> {
        Ok(Arc::new(Open { array: self.array.clone(), scheme: self.scheme.clone() }))
    }
}

impl Handle for Open {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let range = self.array.range(offset, buffer.len())?;
        self.scheme.read(&self.array, range, buffer);
        Ok(buffer.len())
    }
    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        if data.is_empty() {
            return Err(Error::invalid("a write of nothing"));
        }
        let range = self.array.range(offset, data.len())?;
        self.scheme.write(&self.array, range, data);
        Ok(())
    }
    fn sync(&self, _data_only: bool) -> Result<()> {
        Ok(())
    }
}
