// `exp` and what is made of it: `src/cpu/math/functions.rs` with the same constants and the same chain of fused multiply-adds, hence the same bits
// (a NaN stays a NaN, though not with the same payload). `exp` gives 0 below -87 and `exp(88)` above 88.
#pragma once
#include "device.cuh"

DEVICE float exp_of(float x) {
    float bounded = -87.0f > x ? -87.0f : x; // the constant comes first, so that a NaN stays
    bounded = 88.0f < bounded ? 88.0f : bounded;
    float shifted = fmaf(bounded, 1.44269504f, 12582912.0f);
    float n = shifted - 12582912.0f;
    float r = fmaf(n, -0.693147182f, bounded);
    r = fmaf(n, 1.9046542e-9f, r);
    float p = 1.381447e-3f;
    p = fmaf(p, r, 8.36878e-3f);
    p = fmaf(p, r, 4.1668393e-2f);
    p = fmaf(p, r, 1.666652e-1f);
    p = fmaf(p, r, 4.9999994e-1f);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    float y = p * float_of((bits_of(shifted) << 23) + 0x3f800000u);
    return x < -87.0f ? 0.0f : y;
}

/// `1 / (1 + exp(-x))`
DEVICE float sigmoid_of(float x) { return 1.0f / (1.0f + exp_of(0.0f - x)); }

/// `x / (1 + exp(-x))`
DEVICE float silu_of(float x) { return x / (1.0f + exp_of(0.0f - x)); }

/// The same bits without the branch that a division has, so that many are under way together: an inverse made better once, and a quotient twice by its
/// remainder. The divisor is a fourth of what it should be, so that its inverse is not too small a number.
DEVICE float silu_evenly(float x) {
    float d = 0.25f * (1.0f + exp_of(0.0f - x)), inverse = inverse_near(d);
    inverse = fmaf(fmaf(-d, inverse, 1.0f), inverse, inverse);
    float q = x * inverse;
    q = fmaf(fmaf(-d, q, x), inverse, q);
    q = fmaf(fmaf(-d, q, x), inverse, q);
    // zeros keep their sign; of great numbers and infinities remainders are not numbers
    return x > 88.0f || x + x == x ? x : 0.25f * q;
}

/// As `Activation` of src/backend/shape.rs.
#define ACTIVATION_SWIGLU 0
#define ACTIVATION_CLAMPED_SWIGLU 1
#define ACTIVATION_GEGLU 2
#ifndef ACTIVATION
#define ACTIVATION ACTIVATION_SWIGLU
#endif

/// What becomes of a gate and an up projection.
DEVICE float activated(float gate, float up) {
    if (ACTIVATION == ACTIVATION_CLAMPED_SWIGLU) {
        // constants come first, so that a NaN stays
        gate = 7.0f < gate ? 7.0f : gate;
        up = 7.0f < up ? 7.0f : up;
        up = -7.0f > up ? -7.0f : up;
        return (up + 1.0f) * (gate * sigmoid_of(gate * 1.702f));
    }
    if (ACTIVATION == ACTIVATION_GEGLU) {
        float of = 1.5957691f * (gate * fmaf(gate * gate, 0.044715f, 1.0f));
        return gate * sigmoid_of(of) * up;
    }
    return silu_of(gate) * up;
}
/// The same bits, for many at once.
DEVICE float activated_evenly(float gate, float up) { return ACTIVATION == ACTIVATION_SWIGLU ? silu_evenly(gate) * up : activated(gate, up); }

/// `ln(1 + exp(x))`
DEVICE float softplus_of(float x) {
    float low = 0.0f - x;
    float y = exp_of(low < x ? low : x);
    float z = y / (2.0f + y);
    float w = z * z;
    float q = 1.4012551e-1f;
    q = fmaf(q, w, 1.3999511e-1f);
    q = fmaf(q, w, 2.0010853e-1f);
    q = fmaf(q, w, 3.3333206e-1f);
    float log1p = (z + z) * fmaf(q, w, 1.0f);
    return (0.0f > x ? 0.0f : x) + log1p;
}
