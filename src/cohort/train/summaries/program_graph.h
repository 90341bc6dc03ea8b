// SPDX-License-Identifier: Apache-2.0
// The listing of a traced step (Function::program()) as TensorFlow's message of a graph.
#pragma once

#include <string_view>

#include "event_file.pb.h"

namespace cohort::train {

// Takes the last of several programs, which is the newest. There is a node for each input,
// variable, constant and operator, and one for the results; edges are the values between them, and
// lead from a variable to the operators that change it. Throws invalid_argument, naming the line,
// for any other text.
proto::GraphDef graph_of_program(std::string_view listing);

}  // namespace cohort::train
