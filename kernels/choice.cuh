// What `choose` tells of a row.
#pragma once
#include "device.cuh"

struct Choice {
    u32 token;      // of the greatest logit
    u32 finite;     // whether all logits are
    float peak;     // the greatest logit
    u32 candidates; // how many of the greatest were found
    double sum;     // over the row of exp(logit - peak), if candidates were asked for
};
