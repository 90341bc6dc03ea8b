// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "cohort/collective/backends/mpi/communicator.h"
#include "cohort/collective/backends/mpi/world.h"
#include "cohort/collective/mpi_group.h"
#include "cohort/core/error.h"

namespace cohort::collective {
namespace {

constexpr std::size_t kTextBytes = 256;  // with the zero at its end
using SentText = std::array<char, kTextBytes>;

// Whether MPI was begun here, and is ended by end().
bool begin_for_one_call() {
  int answer = 0;
  ::MPI_Finalized(&answer);
  COHORT_CHECK(
      answer == 0, ErrorCode::failed_precondition,
      "[collective.mpi] expected MPI to exchange addresses, got its end; make the resolver "
      "before MPI_Finalize()");
  ::MPI_Initialized(&answer);
  if (answer != 0) return false;
  ::MPI_Init(nullptr, nullptr);
  return true;
}

void wait_for(MPI_Request& request, Deadline deadline, const MpiPlace& place) {
  for (int is_done = 0; is_done == 0;) {
    ::MPI_Test(&request, &is_done, MPI_STATUS_IGNORE);
    if (is_done != 0) break;
    COHORT_CHECK(
        !deadline.has_expired(), ErrorCode::deadline_exceeded, "[collective.mpi] expected all ",
        place.size,
        " processes of MPI_COMM_WORLD to exchange addresses in time, got only some; all of "
        "them ask for the cluster");
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

void check_place(const MpiPlace& place) {
  int rank = 0, size = 1;
  ::MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  ::MPI_Comm_size(MPI_COMM_WORLD, &size);
  COHORT_CHECK(
      rank == place.self && size == place.size, ErrorCode::failed_precondition,
      "[collective.mpi] expected process ", place.self, " of ", place.size,
      ", as the launcher's variables say, got ", rank, " of ", size,
      " from MPI; start the processes with the mpirun of the MPI that Cohort is built "
      "with, or set MASTER_ADDR to a host of the job and MASTER_PORT to a free port there");
}

std::vector<std::string> gathered(const std::string& mine, const MpiPlace& place,
                                  Deadline deadline) {
  check_place(place);
  SentText own{};
  std::memcpy(own.data(), mine.data(), mine.size());
  std::vector<SentText> all(static_cast<std::size_t>(place.size));
  MPI_Request request = MPI_REQUEST_NULL;
  constexpr int kCount = static_cast<int>(kTextBytes);
  ::MPI_Iallgather(own.data(), kCount, MPI_CHAR, all.data(), kCount, MPI_CHAR, MPI_COMM_WORLD,
                   &request);
  wait_for(request, deadline, place);
  std::vector<std::string> texts;
  for (const SentText& each : all) texts.emplace_back(each.data());
  return texts;
}

}  // namespace

void begin_mpi() { mpi::World::get(); }

std::vector<std::string> exchange_texts_by_mpi(const std::string& mine, MpiPlace place,
                                               Deadline deadline) {
  COHORT_CHECK(mine.size() < kTextBytes, ErrorCode::invalid_argument,
               "[collective.mpi] expected an address of at most ", kTextBytes - 1, " bytes, got ",
               mine.size());
  const bool begins = begin_for_one_call();
  std::vector<std::string> texts = gathered(mine, place, deadline);
  if (!begins) return texts;
  // MPI_Finalize() has no deadline, and waits for all.
  MPI_Request request = MPI_REQUEST_NULL;
  ::MPI_Ibarrier(MPI_COMM_WORLD, &request);
  wait_for(request, deadline, place);
  ::MPI_Finalize();
  return texts;
}

}  // namespace cohort::collective
