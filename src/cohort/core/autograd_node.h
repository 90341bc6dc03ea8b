// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace cohort::internal {

// A node of autograd's graph, of a class that derives from torch::autograd::Node. Newer versions of
// LibTorch count the references of a node in the node itself.
template <class N, class... A>
auto make_node(A&&... arguments) {
  if constexpr (std::is_base_of_v<c10::intrusive_ptr_target, N>) {
    return c10::make_intrusive<N>(std::forward<A>(arguments)...);
  } else {
    // torch::autograd::deleteNode(), which the newer ones do not have.
    return std::shared_ptr<N>(new N(std::forward<A>(arguments)...),
                              [](auto* node) { deleteNode(node); });
  }
}

}  // namespace cohort::internal
