//! The program from outside, as people and clients see it, with the bundled model.

#[path = "program/clients.rs"]
mod clients;
#[path = "program/commands.rs"]
mod commands;
#[path = "program/events.rs"]
mod events;
#[path = "program/process.rs"]
mod process;
#[path = "program/replay.rs"]
mod replay;
