//! Right tokens: the whole model on the CPU against independent references.

#[path = "golden/bare.rs"]
mod bare;
#[path = "golden/dice.rs"]
mod dice;
#[path = "golden/drafts.rs"]
mod drafts;
#[path = "golden/families.rs"]
mod families;
#[path = "golden/follow.rs"]
mod follow;
#[path = "golden/guesses.rs"]
mod guesses;
#[path = "golden/load.rs"]
mod load;
#[path = "golden/reference.rs"]
mod reference;
#[path = "golden/smollm2.rs"]
mod smollm2;
#[path = "golden/store.rs"]
mod store;
#[path = "golden/tales.rs"]
mod tales;
#[path = "golden/tiny.rs"]
mod tiny;
#[path = "golden/together.rs"]
mod together;
#[path = "golden/turns.rs"]
mod turns;
