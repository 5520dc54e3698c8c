//! The engine against a fake model: seeded simulations of whole evenings, and the cases that matter one by one.
//!
//! One thread takes the engine's turns and plays all clients, so a seed replays every interleaving.

#[path = "engine/cases.rs"]
mod cases;
#[path = "engine/drafts.rs"]
mod drafts;
#[path = "engine/fake.rs"]
mod fake;
#[path = "engine/gaps.rs"]
mod gaps;
#[path = "engine/simulation.rs"]
mod simulation;
#[path = "engine/threads.rs"]
mod threads;
