// SPDX-License-Identifier: MIT
// weft: tensors as expression templates, a static compute graph, training.
//
// Everything for one process without files. Of their own: <weft/io/...>, <weft/train/...>.
// Bottom-up, so that the chain of includes that compilers print before an error is short.
#pragma once

#include <weft/op/all.hpp>  // first: laws are stated there

#include <weft/tensor/create.hpp>
#include <weft/tensor/print.hpp>

#include <weft/grad/derivative.hpp>

#include <weft/run/eval.hpp>
#include <weft/run/tape.hpp>
#include <weft/run/gradcheck.hpp>
#include <weft/run/list.hpp>
#include <weft/run/peak_bytes.hpp>

#include <weft/nn/batch_norm.hpp>
#include <weft/nn/clone.hpp>
#include <weft/nn/convolution.hpp>
#include <weft/nn/layers.hpp>
#include <weft/nn/linear_cross_entropy.hpp>
#include <weft/nn/recurrent.hpp>
#include <weft/nn/repeat.hpp>
#include <weft/nn/sequential.hpp>
#include <weft/nn/training_mode.hpp>
#include <weft/nn/transformer.hpp>
#include <weft/optim/copy_weights.hpp>
#include <weft/optim/optimizer.hpp>
#include <weft/optim/parameter_groups.hpp>
#include <weft/optim/amsgrad.hpp>
#include <weft/optim/rmsprop.hpp>
#include <weft/optim/schedule.hpp>
