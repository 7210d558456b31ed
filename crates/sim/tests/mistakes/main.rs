//! Tests of the simulator that make deliberate mistakes, in one program. The switch is one for the whole
//! process, so each test takes its turn with `mistakes::with`.

mod append;
mod caught;
mod connection;
mod discards;
mod every_crash;
mod grow;
mod growth;
mod homes_under_way;
mod images;
mod leases;
mod liveness;
mod pool;
mod refused;
mod repair;
mod resize;
mod scrub;
mod sectors;
mod snapshot_frees;
mod snapshot_homes;
mod snapshots;
mod streams;
