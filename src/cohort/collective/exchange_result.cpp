// SPDX-License-Identifier: Apache-2.0
#include <span>
#include <string>
#include <utility>

#include "cohort/collective/group.h"
#include "cohort/core/detail/error_bytes.h"

namespace cohort::collective {

std::vector<Bytes> exchange_result(Group& group, const std::function<Bytes()>& make,
                                   std::string_view what, Deadline deadline) {
  ByteWriter mine;
  try {
    const Bytes made = make();
    mine.u8(0);
    mine.blob(made);
  } catch (...) {
    mine.u8(1);
    write_error(mine, current_error());
  }
  std::vector<Bytes> all = group.exchange(mine.take(), what, deadline);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    ByteReader reader(all[rank], what);
    if (reader.u8() != 0) throw read_error(reader).at("worker:" + std::to_string(rank));
    const std::span<const std::byte> made = reader.blob();
    all[rank] = Bytes(made.begin(), made.end());
  }
  return all;
}

}  // namespace cohort::collective
