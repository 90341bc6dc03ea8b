// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/kept_memory.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

namespace cohort {
namespace {

TEST(KeptMemory, TensorsAreNotMappedAnew) {
  keep_freed_memory();
  const std::size_t mapped = ::mallinfo2().hblks;
  void* const tensor = std::malloc(16 << 20);
  ASSERT_NE(tensor, nullptr);
  EXPECT_EQ(::mallinfo2().hblks, mapped);
  std::free(tensor);
  const std::size_t held = ::mallinfo2().arena;
  void* const next = std::malloc(16 << 20);
  EXPECT_EQ(::mallinfo2().arena, held) << "the freed one serves";
  std::free(next);
}

// Whether the mapping of this address has the flag "hg" in /proc/self/smaps.
bool is_advised(const void* address) {
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  std::ifstream maps("/proc/self/smaps");
  bool is_here = false;
  for (std::string line; std::getline(maps, line);) {
    std::istringstream in(line);
    std::uintptr_t begin = 0, end = 0;
    char dash = 0;
    if (in >> std::hex >> begin >> dash >> end && dash == '-') {
      is_here = begin <= wanted && wanted < end;
    } else if (is_here && line.starts_with("VmFlags:")) {
      return line.find(" hg") != std::string::npos;
    }
  }
  return false;
}

TEST(HugePages, AreAskedForLargeTensorsAlone) {
  const std::int64_t bytes = 64 << 20;
  const at::Tensor plain = at::empty({bytes}, at::kByte);
  const at::Tensor large = in_huge_pages(at::empty({bytes}, at::kByte));
  const at::Tensor small = in_huge_pages(at::empty({4096}, at::kByte));
  const auto middle = [](const at::Tensor& tensor) {
    return static_cast<const std::byte*>(tensor.data_ptr()) + tensor.nbytes() / 2;
  };
  EXPECT_TRUE(is_advised(middle(large)));
  EXPECT_FALSE(is_advised(middle(plain)));
  EXPECT_FALSE(is_advised(middle(small)));
}

TEST(HugePages, KeepWhatIsInside) {
  alignas(64) std::byte few[64];
  use_huge_pages(few, sizeof(few));  // touches nothing beside it
  std::vector<std::byte> memory(kHugeBytesMin + 1, std::byte{7});
  use_huge_pages(memory.data() + 1, kHugeBytesMin);
  EXPECT_EQ(std::ranges::count(memory, std::byte{7}), std::ssize(memory));
}

}  // namespace
}  // namespace cohort
