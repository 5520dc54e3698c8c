//! The HTTP side over real sockets, with the real engine thread and a model whose every token can be foretold.

#[path = "http/api.rs"]
mod api;
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
