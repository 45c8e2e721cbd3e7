/* Add a number of each process around a ring, and print the sum in each, with the number of its container. */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    int rank, ranks, step;
    double value, came, sum;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    value = sum = rank + 1;
    for (step = 1; step < ranks; step++) {
        MPI_Sendrecv(&value, 1, MPI_DOUBLE, (rank + 1) % ranks, 0, &came, 1, MPI_DOUBLE, (rank + ranks - 1) % ranks, 0,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        sum += value = came;
    }
    printf("%d of %d in %s: %g\n", rank, ranks, getenv("CONTAINER_INDEX"), sum);
    return MPI_Finalize();
}
