//! A model file of every block type: layers of random weights, dense and with experts, each of types of its own.

use half::{bf16, f16};
use tidegate::{
    gguf::{Entry, Gguf, HeaderWriter},
    quant::{self, BlockType},
};

/// Width of the residual: two blocks of the widest kind.
pub(crate) const WIDTH: usize = 512;
/// Tokens in the vocabulary.
pub(crate) const TOKENS: usize = 200;
/// Experts of a layer.
pub(crate) const EXPERTS: usize = 8;
/// Experts a row uses.
pub(crate) const USED: usize = 3;

/// A layer: a gate, an up and a down matrix, or `EXPERTS` of each.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    /// Types of gate, up and down.
    pub(crate) types: [BlockType; 3],
    /// Width of the intermediate.
    pub(crate) width: usize,
    /// The router's type, if there are experts.
    pub(crate) router: Option<BlockType>,
    /// Types of the shared expert, if there is one.
    pub(crate) shared: Option<[BlockType; 3]>,
}

/// A generator of numbers (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From -1 to 1.
    fn signed(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// Blocks of one type, any bits but for scales of a sensible size.
struct Blocks {
    ty: BlockType,
    known: Vec<Vec<u8>>,
}

impl Blocks {
    /// Tries random bytes until the values are neither huge nor all tiny.
    fn new(ty: BlockType, random: &mut Random) -> Self {
        let (mut known, mut values) = (Vec::new(), vec![0.0; ty.block_values()]);
        while known.len() < 64 {
            let bytes: Vec<u8> = (0..ty.block_bytes()).map(|_| random.next() as u8).collect();
            quant::dequantise(ty, &bytes, &mut values).expect("a block");
            let largest = values.iter().fold(0f32, |max, value| match value.is_nan() {
                true => f32::INFINITY,
                false => max.max(value.abs()),
            });
            if (0.02..0.25).contains(&largest) {
                known.push(bytes);
            }
        }
        Self { ty, known }
    }

    fn fill(&self, values: usize, random: &mut Random, out: &mut Vec<u8>) {
        for _ in 0..values / self.ty.block_values() {
            out.extend(&self.known[random.next() as usize % self.known.len()]);
        }
    }
}

/// The file under construction.
struct Writer {
    header: HeaderWriter,
    data: Vec<u8>,
    random: Random,
    blocks: Vec<Blocks>,
}

impl Writer {
    fn tensor(&mut self, name: &str, dims: &[usize], ty: BlockType) {
        let at = self.header.tensor(name, dims, ty);
        self.data.resize(at as usize, 0);
        let (values, random, out) = (dims.iter().product(), &mut self.random, &mut self.data);
        let mut floats = |put: fn(&mut Vec<u8>, f32)| {
            (0..values).for_each(|_| put(out, 0.2 * random.signed()));
        };
        match ty {
            BlockType::F32 => floats(|out, value| out.extend(value.to_le_bytes())),
            BlockType::F16 => floats(|out, value| out.extend(f16::from_f32(value).to_le_bytes())),
            BlockType::BF16 => floats(|out, value| out.extend(bf16::from_f32(value).to_le_bytes())),
            _ => {
                if !self.blocks.iter().any(|blocks| blocks.ty == ty) {
                    self.blocks.push(Blocks::new(ty, random));
                }
                let blocks = self.blocks.iter().find(|blocks| blocks.ty == ty);
                blocks.expect("just made").fill(values, random, out);
            }
        }
    }

    /// A gate, an up and a down matrix; `suffix` is of several experts, of a shared one, or empty.
    fn gate_up_down(&mut self, at: &str, suffix: &str, types: [BlockType; 3], width: usize) {
        let experts: &[usize] = if suffix == "_exps" { &[EXPERTS] } else { &[] };
        for (kind, ty, dims) in [
            ("gate", types[0], [WIDTH, width]),
            ("up", types[1], [WIDTH, width]),
            ("down", types[2], [width, WIDTH]),
        ] {
            let name = format!("{at}.ffn_{kind}{suffix}.weight");
            self.tensor(&name, &[&dims, experts].concat(), ty);
        }
    }

    fn layer(&mut self, at: &str, layer: &Layer) {
        self.tensor(
            &format!("{at}.table.weight"),
            &[WIDTH, TOKENS],
            layer.types[0],
        );
        self.tensor(&format!("{at}.norm.weight"), &[WIDTH], BlockType::F32);
        let Some(router) = layer.router else {
            self.gate_up_down(at, "", layer.types, layer.width);
            return;
        };
        self.tensor(
            &format!("{at}.ffn_gate_inp.weight"),
            &[WIDTH, EXPERTS],
            router,
        );
        self.gate_up_down(at, "_exps", layer.types, layer.width);
        if let Some(types) = layer.shared {
            self.tensor(
                &format!("{at}.ffn_gate_inp_shexp.weight"),
                &[WIDTH],
                BlockType::F32,
            );
            self.gate_up_down(at, "_shexp", types, layer.width);
        }
    }
}

/// The file with these layers.
pub(crate) fn file(layers: &[Layer]) -> Gguf {
    let mut header = HeaderWriter::new();
    let widths: Vec<i32> = layers.iter().map(|layer| layer.width as i32).collect();
    header
        .set("general.architecture", Entry::Str("zoo"))
        .set("zoo.embedding_length", Entry::U32(WIDTH as u32))
        .set("zoo.block_count", Entry::U32(layers.len() as u32))
        .set("zoo.context_length", Entry::U32(TOKENS as u32))
        .set("zoo.expert_count", Entry::U32(EXPERTS as u32))
        .set("zoo.expert_used_count", Entry::U32(USED as u32))
        .set("zoo.feed_forward_length", Entry::I32s(&widths))
        .set("zoo.attention.layer_norm_rms_epsilon", Entry::F32(1e-6));
    let mut writer = Writer {
        header,
        data: Vec::new(),
        random: Random(1),
        blocks: Vec::new(),
    };
    writer.tensor("token_embd.weight", &[WIDTH, TOKENS], BlockType::F32);
    writer.tensor("output_norm.weight", &[WIDTH], BlockType::F32);
    for (index, layer) in layers.iter().enumerate() {
        writer.layer(&format!("blk.{index}"), layer);
    }
    let mut bytes = writer.header.finish();
    writer.data.resize(writer.header.data_bytes() as usize, 0);
    bytes.extend(writer.data);
    Gguf::from_bytes(bytes).expect("a valid file")
}
