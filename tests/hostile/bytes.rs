//! Files put together byte by byte, so that any part can be wrong.

/// A header with its parts as written, and the data.
#[derive(Clone)]
pub(crate) struct File {
    pub(crate) magic: Vec<u8>,
    pub(crate) version: u32,
    pub(crate) tensor_count: i64,
    pub(crate) key_count: i64,
    pub(crate) keys: Vec<u8>,
    pub(crate) tensors: Vec<u8>,
    pub(crate) data: Vec<u8>,
}

/// A file of two tensors of four f32, valid in every part.
pub(crate) fn valid() -> File {
    File {
        magic: b"GGUF".to_vec(),
        version: 3,
        tensor_count: 2,
        key_count: 2,
        keys: [
            key("general.architecture", 8, &string("olmoe")),
            key("olmoe.expert_count", 4, &8u32.to_le_bytes()),
        ]
        .concat(),
        tensors: [tensor("a", &[4], 0, 0), tensor("b", &[2, 2], 0, 32)].concat(),
        data: vec![0; 48],
    }
}

impl File {
    /// With these keys only.
    pub(crate) fn keys(keys: &[Vec<u8>]) -> Self {
        Self {
            key_count: keys.len() as i64,
            keys: keys.concat(),
            ..valid()
        }
    }

    /// With these tensors only.
    pub(crate) fn tensors(tensors: &[Vec<u8>]) -> Self {
        Self {
            tensor_count: tensors.len() as i64,
            tensors: tensors.concat(),
            ..valid()
        }
    }

    /// The file, data at the next multiple of 32.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let counts = [
            self.tensor_count.to_le_bytes(),
            self.key_count.to_le_bytes(),
        ]
        .concat();
        let mut bytes = [
            &self.magic[..],
            &self.version.to_le_bytes(),
            &counts,
            &self.keys,
            &self.tensors,
        ]
        .concat();
        bytes.resize(bytes.len().next_multiple_of(32), 0);
        bytes.extend(&self.data);
        bytes
    }
}

pub(crate) fn string(text: impl AsRef<[u8]>) -> Vec<u8> {
    [&(text.as_ref().len() as u64).to_le_bytes(), text.as_ref()].concat()
}

pub(crate) fn key(name: impl AsRef<[u8]>, ty: u32, value: &[u8]) -> Vec<u8> {
    [&string(name), &ty.to_le_bytes()[..], value].concat()
}

pub(crate) fn array(element: u32, count: u64, elements: &[u8]) -> Vec<u8> {
    [&element.to_le_bytes()[..], &count.to_le_bytes(), elements].concat()
}

pub(crate) fn tensor(name: impl AsRef<[u8]>, dims: &[i64], ty: u32, offset: u64) -> Vec<u8> {
    let dims: Vec<u8> = dims.iter().flat_map(|n| n.to_le_bytes()).collect();
    [
        &string(name),
        &((dims.len() / 8) as u32).to_le_bytes()[..],
        &dims,
        &ty.to_le_bytes(),
        &offset.to_le_bytes(),
    ]
    .concat()
}
