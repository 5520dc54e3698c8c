//! The HTTP side over real sockets, with the real engine thread and a model whose every token can be foretold.

#[path = "http/access.rs"]
mod access;
#[path = "http/api.rs"]
mod api;
#[path = "http/crowd.rs"]
mod crowd;
#[path = "http/defence.rs"]
mod defence;
#[path = "golden/dice.rs"]
mod dice;
#[path = "http/hostile.rs"]
mod hostile;
#[path = "http/life.rs"]
mod life;
#[path = "http/parrot.rs"]
mod parrot;
#[path = "http/reply.rs"]
mod reply;
#[path = "http/server.rs"]
mod server;
#[path = "http/thoughts.rs"]
mod thoughts;
