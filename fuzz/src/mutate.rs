//! Small changes of inputs, from a seed: what a replay without libFuzzer does to the kept corpus.
//!
//! Invariant: the same seed and corpus give the same inputs.

use quire_base::random::Random;

const NUMBERS: [u64; 12] =
    [0, 1, 2, 16, 255, 4096, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, 1 << 60, u64::MAX];

/// One input made from those of `corpus`.
pub fn mutated(corpus: &[Vec<u8>], random: &mut Random, bytes_max: usize) -> Vec<u8> {
    let mut bytes = match corpus.len() {
        0 => vec![0; 64],
        count => corpus[random.below(count as u64) as usize].clone(),
    };
    for _ in 0..=random.below(4) {
        change(&mut bytes, corpus, random);
    }
    bytes.truncate(bytes_max);
    bytes
}

fn change(bytes: &mut Vec<u8>, corpus: &[Vec<u8>], random: &mut Random) {
    let at = random.below(bytes.len() as u64 + 1) as usize;
    let order = random.below(7);
    let len = (random.below(1 << order) as usize + 1).min(bytes.len() - at);
    match random.below(8) {
        0 if len > 0 => bytes[at] ^= 1 << random.below(8),
        1 if len > 0 => bytes[at] = random.below(256) as u8,
        2 if len > 0 => drop(bytes.drain(at..at + len)),
        3 => {
            let new: Vec<u8> = (0..=random.below(16)).map(|_| random.below(256) as u8).collect();
            bytes.splice(at..at, new);
        }
        4 if len > 0 => {
            let copy = bytes[at..at + len].to_vec();
            let to = random.below(bytes.len() as u64 + 1) as usize;
            bytes.splice(to..to, copy);
        }
        5 if !corpus.is_empty() => {
            // The end of another input.
            let other = &corpus[random.below(corpus.len() as u64) as usize];
            let from = random.below(other.len() as u64 + 1) as usize;
            bytes.truncate(at);
            bytes.extend_from_slice(&other[from..]);
        }
        6 if bytes.len() >= at + 8 => {
            let number = NUMBERS[random.below(NUMBERS.len() as u64) as usize];
            bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
        _ if len > 0 => {
            let delta = random.below(9) as u8;
            bytes[at] = bytes[at].wrapping_add(delta).wrapping_sub(4);
        }
        _ => bytes.push(random.below(256) as u8),
    }
}
