//! The CUDA backend, on a device: a real one where there is one, else the stand-ins that `TIDEGATE_CUDA_HOST` names
//! (`tests/cuda-host/build FOLDER` makes them). With neither these tests say so and pass, unless `TIDEGATE_REQUIRE_CUDA` is 1.

#[path = "golden/bare.rs"]
#[expect(dead_code, reason = "some of it is for the CPU's tests")]
mod bare;
#[path = "device/candidates.rs"]
mod candidates;
#[path = "device/crowd.rs"]
mod crowd;
#[path = "golden/dice.rs"]
mod dice;
#[path = "device/failures.rs"]
mod failures;
#[path = "golden/families.rs"]
mod families;
#[path = "golden/follow.rs"]
mod follow;
#[path = "golden/table.rs"]
mod gone;
#[path = "device/gpu.rs"]
mod gpu;
#[path = "golden/guesses.rs"]
mod guesses;
#[path = "golden/load.rs"]
mod load;
#[path = "golden/made.rs"]
mod made;
#[path = "device/memory.rs"]
mod memory;
#[path = "device/predictions.rs"]
mod predictions;
#[path = "program/process.rs"]
mod process;
#[path = "device/products.rs"]
mod products;
#[path = "golden/reference.rs"]
#[expect(dead_code, reason = "some of it is for the CPU's tests")]
mod reference;
#[path = "golden/remade.rs"]
#[expect(dead_code, reason = "files are not changed here")]
mod remade;
#[path = "device/table.rs"]
mod table;
#[path = "device/tales.rs"]
mod tales;
#[path = "device/tiny.rs"]
mod tiny;
#[path = "device/together.rs"]
mod together;
#[path = "golden/turns.rs"]
mod turns;
#[path = "device/twins.rs"]
mod twins;
#[path = "device/zoo.rs"]
mod zoo;
