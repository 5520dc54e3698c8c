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
#[path = "golden/made.rs"]
mod made;
#[path = "golden/planted.rs"]
mod planted;
#[path = "golden/reference.rs"]
mod reference;
#[path = "golden/remade.rs"]
mod remade;
#[path = "golden/smollm2.rs"]
mod smollm2;
#[path = "golden/store.rs"]
mod store;
#[path = "golden/table.rs"]
mod table;
#[path = "golden/table_gone.rs"]
mod table_gone;
#[path = "golden/tales.rs"]
mod tales;
#[path = "golden/tiny.rs"]
mod tiny;
#[path = "golden/together.rs"]
mod together;
#[path = "golden/traps.rs"]
mod traps;
#[path = "golden/turns.rs"]
mod turns;
#[path = "golden/twins.rs"]
mod twins;
