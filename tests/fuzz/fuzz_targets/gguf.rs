//! Any bytes as a model file. Whatever opens is used as a model would be: every key through every getter, every tensor's bytes, blocks of
//! every type decoded, and the whole inspected. Nothing may panic, and nothing may lie outside the file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate::{
    gguf::{Gguf, Value},
    inspect::Inspection,
    quant::dequantise,
};

fuzz_target!(|bytes: &[u8]| {
    let Ok(file) = Gguf::from_bytes(bytes.to_vec()) else {
        return;
    };
    let _ = (file.architecture(), file.check_is_model());
    for (key, value) in file.metadata() {
        let _ = (
            file.str(key),
            file.u32(key),
            file.u64(key),
            file.f32(key),
            file.bool(key),
            file.f32s(key),
            file.i32s(key),
        );
        let _ = (file.per_layer(key, 2), file.per_layer_bool(key, 2));
        if let Value::Array(array) = value {
            assert_eq!(array.iter().count(), array.len());
        }
        if let Ok(Some(strings)) = file.strings(key) {
            assert_eq!(strings.texts().count(), strings.len());
        }
    }
    for tensor in file.tensors() {
        assert_eq!(file.bytes(tensor).len(), tensor.bytes);
        assert!(
            file.need_tensor(&tensor.name, tensor.dims.trimmed())
                .is_ok()
        );
        let row = &file.bytes(tensor)[..tensor.row_bytes()];
        let mut values = vec![0.0; tensor.dims.row()];
        dequantise(tensor.ty, row, &mut values).expect("rows are whole blocks");
    }
    if let Ok(facts) = Inspection::of(&file) {
        let _ = (
            facts.text(false).to_string(),
            facts.text(true).to_string(),
            facts.json(),
        );
    }
});
